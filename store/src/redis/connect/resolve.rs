//! The addresses of a server's host name. At most one lookup is in flight: an attempt to connect that gives up
//! leaves it to the next attempt, so a silent name server neither collects lookups nor loses their results.

use std::io;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use redis::RedisFuture;
use redis::io::AsyncDNSResolver;
use tokio::net::lookup_host;
use tokio::sync::watch;
use tokio::time::Instant;

/// Time for which addresses are used again. Attempts to connect are more frequent, and a cluster's name servers
/// should not receive a query for each attempt of each pod.
const REUSE: Duration = Duration::from_secs(2);

/// The result of a lookup, with its time.
#[derive(Debug, Clone)]
struct Resolved {
    addresses: Result<Vec<SocketAddr>, (io::ErrorKind, String)>,
    at: Instant,
}

impl Resolved {
    fn is_fresh(&self) -> bool {
        self.addresses.is_ok() && self.at.elapsed() < REUSE
    }
}

/// Finds the addresses of one host. Clones share the last lookup.
#[derive(Debug, Clone, Default)]
pub(super) struct Resolver {
    /// The last lookup, which is in flight as long as it has no result.
    last: Arc<Mutex<Option<watch::Receiver<Option<Resolved>>>>>,
}

impl Resolver {
    /// Returns the addresses of a host; none is an error.
    pub(super) async fn lookup(&self, host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
        let mut lookup = self.current(host, port);
        let ended = || io::Error::other("the lookup of the host name was ended");
        let resolved = lookup.wait_for(Option::is_some).await.map_err(|_| ended())?.clone();
        match resolved.ok_or_else(ended)?.addresses {
            Ok(addresses) if addresses.is_empty() => {
                Err(io::Error::new(io::ErrorKind::NotFound, "the host name has no address"))
            }
            Ok(addresses) => Ok(addresses),
            Err((kind, text)) => Err(io::Error::new(kind, text)),
        }
    }

    /// Returns the last lookup if it is in flight or fresh, and starts another one otherwise.
    fn current(&self, host: &str, port: u16) -> watch::Receiver<Option<Resolved>> {
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(lookup) = &*last {
            let is_fresh = lookup.borrow().as_ref().map(Resolved::is_fresh);
            // A lookup without a result has ended if its sender is gone.
            if is_fresh.unwrap_or_else(|| lookup.has_changed().is_ok()) {
                return lookup.clone();
            }
        }
        let (result, lookup) = watch::channel(None);
        let host = host.to_owned();
        tokio::spawn(async move {
            let addresses = lookup_host((host, port)).await;
            // The kind of these errors would otherwise depend on the system's resolver.
            let not_found = |error: io::Error| (io::ErrorKind::NotFound, error.to_string());
            let addresses = addresses.map(Iterator::collect).map_err(not_found);
            result.send_replace(Some(Resolved { addresses, at: Instant::now() }));
        });
        *last = Some(lookup.clone());
        lookup
    }
}

impl AsyncDNSResolver for Resolver {
    fn resolve<'a, 'b: 'a>(
        &'a self,
        host: &'b str,
        port: u16,
    ) -> RedisFuture<'a, Box<dyn Iterator<Item = SocketAddr> + Send + 'a>> {
        Box::pin(async move {
            let addresses = self.lookup(host, port).await?;
            Ok(Box::new(addresses.into_iter()) as Box<dyn Iterator<Item = SocketAddr> + Send>)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn addresses_are_used_again_for_a_short_time_and_failures_never() {
        let resolver = Resolver::default();
        let started = |resolver: &Resolver| resolver.last.lock().unwrap().clone().unwrap();
        assert_eq!(resolver.lookup("127.0.0.1", 7).await.unwrap(), [([127, 0, 0, 1], 7).into()]);
        let first = started(&resolver);
        resolver.lookup("127.0.0.1", 7).await.unwrap();
        assert!(first.same_channel(&started(&resolver)));
        tokio::time::advance(REUSE).await;
        resolver.lookup("127.0.0.1", 7).await.unwrap();
        assert!(!first.same_channel(&started(&resolver)));
        // Not a valid name, so no name server is asked.
        let resolver = Resolver::default();
        resolver.lookup("a..b", 7).await.unwrap_err();
        let first = started(&resolver);
        resolver.lookup("a..b", 7).await.unwrap_err();
        assert!(!first.same_channel(&started(&resolver)));
    }

    #[tokio::test]
    async fn an_attempt_that_gives_up_leaves_its_lookup_to_the_next_one() {
        let resolver = Resolver::default();
        let (result, lookup) = watch::channel(None);
        *resolver.last.lock().unwrap() = Some(lookup);
        let given_up = tokio::time::timeout(Duration::from_millis(1), resolver.lookup("a", 7)).await;
        assert!(given_up.is_err());
        let addresses = Ok(vec![([127, 0, 0, 1], 7).into()]);
        result.send_replace(Some(Resolved { addresses, at: Instant::now() }));
        assert_eq!(resolver.lookup("a", 7).await.unwrap().len(), 1);
    }
}
