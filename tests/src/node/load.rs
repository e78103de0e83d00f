//! Load on an application while something happens to it, with requests that a policy counts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use crate::client::{KeepAlive, Tally, get, get_many};

/// Clients that open a connection for each request. A Service spreads these over its pods.
const SINGLE: usize = 2;
/// Clients that keep their connection for as long as the server does.
const KEPT: usize = 3;
/// Pause between two requests of a client.
const PAUSE: Duration = Duration::from_millis(50);

/// Clients that send requests until they are told to stop. Neither kind may meet a closed port: endpoints spread before
/// ports close, and the sidecar closes kept connections before the application ends.
pub struct Load {
    address: String,
    client: String,
    done: Arc<AtomicBool>,
    admitted: Arc<AtomicUsize>,
    clients: JoinSet<Tally>,
}

impl Load {
    /// Number of clients, each of which has at most one request at a time.
    pub const CLIENTS: usize = SINGLE + KEPT;

    /// Starts the clients. Needs a runtime with several threads, because kubectl blocks the thread of a test.
    #[must_use]
    pub fn start(address: &str) -> Self {
        Self::start_as(address, "load")
    }

    /// Starts the clients with this value of the header `x-client`.
    #[must_use]
    pub fn start_as(address: &str, client: &str) -> Self {
        let (done, admitted) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
        let mut clients = JoinSet::new();
        for n in 0..Self::CLIENTS {
            let (address, client) = (address.to_owned(), client.to_owned());
            let (done, admitted) = (done.clone(), admitted.clone());
            clients.spawn(async move {
                let (mut kept, mut tally) = (KeepAlive::new(&address), Tally::default());
                let headers = [("x-client", client.as_str())];
                while !done.load(Ordering::Relaxed) {
                    let response = match n {
                        0..SINGLE => get(&address, "/", &headers).await,
                        _ => kept.get_with(&headers).await,
                    };
                    match response.status {
                        200 => _ = admitted.fetch_add(1, Ordering::Relaxed),
                        429 => {}
                        _ => eprintln!("client {n} of {address}: {response:?}"),
                    }
                    tally.count_response(&response);
                    tokio::time::sleep(PAUSE).await;
                }
                tally
            });
        }
        Self { address: address.to_owned(), client: client.to_owned(), done, admitted, clients }
    }

    /// Returns the number of requests that have been admitted so far.
    #[must_use]
    pub fn admitted(&self) -> usize {
        self.admitted.load(Ordering::Relaxed)
    }

    /// Stops the clients and returns what they have received.
    ///
    /// # Panics
    /// When a client has panicked.
    pub async fn stop(mut self) -> Tally {
        self.done.store(true, Ordering::Relaxed);
        let mut tally = Tally::default();
        while let Some(client) = self.clients.join_next().await {
            tally.add(client.expect("a client does not panic"));
        }
        tally
    }

    /// Stops the clients, and expects that no request was lost.
    ///
    /// # Panics
    /// When a request got another status than 200 or 429.
    pub async fn expect_no_loss(self) -> Tally {
        let tally = self.stop().await;
        println!("under load: {tally:?}");
        assert!(tally.by_status.keys().all(|status| [200, 429].contains(status)), "lost requests: {tally:?}");
        tally
    }

    /// Stops the clients, uses up what a limit of `n` requests has left, and expects that no request was lost and that
    /// exactly `n` were admitted.
    ///
    /// # Panics
    /// When a request got another status than 200 or 429, or another number was admitted.
    pub async fn expect_exactly(self, n: usize) {
        let (address, client) = (self.address.clone(), self.client.clone());
        let mut all = self.expect_no_loss().await;
        let rest = n.saturating_sub(all.count(200)) + 30;
        all.add(get_many(&address, rest, 30, &[("x-client", &client)]).await);
        println!("in all: {all:?}");
        assert_eq!(
            (all.count(200), all.count(200) + all.count(429)),
            (n, all.by_status.values().sum()),
            "{all:?}"
        );
    }
}
