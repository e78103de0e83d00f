//! Applications behind a sidecar. They speak just enough HTTP/1.1 for the tests and run as long as the test's
//! runtime.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{Notify, Semaphore};

const OK: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok";

/// An application whose requests the test can hold. The path selects its behaviour: `/hold` answers when the
/// test releases it, `/break` closes the connection then, and any other path answers after 20 ms.
#[derive(Debug, Clone)]
pub struct Application {
    /// Address that it listens on, `HOST:PORT`.
    pub address: String,
    in_flight: Arc<AtomicUsize>,
    peak: Arc<AtomicUsize>,
    received: Arc<AtomicUsize>,
    release: Arc<Notify>,
}

impl Application {
    /// Starts an application.
    pub async fn start() -> Self {
        let (listener, address) = listen().await;
        let this = Self {
            address,
            in_flight: Arc::default(),
            peak: Arc::default(),
            received: Arc::default(),
            release: Arc::default(),
        };
        let application = this.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(application.clone().serve(BufReader::new(stream)));
            }
        });
        this
    }

    /// Returns the largest number of requests that were in flight at the same time.
    #[must_use]
    pub fn peak(&self) -> usize {
        self.peak.load(Ordering::SeqCst)
    }

    /// Returns the number of requests received so far.
    #[must_use]
    pub fn received(&self) -> usize {
        self.received.load(Ordering::SeqCst)
    }

    /// Releases the requests to `/hold` and `/break` that are in flight.
    pub fn release(&self) {
        self.release.notify_waiters();
    }

    async fn serve(self, mut stream: BufReader<TcpStream>) {
        while let Some(path) = next_request(&mut stream).await {
            let in_flight = self.in_flight.fetch_add(1, Ordering::SeqCst) + 1;
            self.peak.fetch_max(in_flight, Ordering::SeqCst);
            let released = self.release.notified();
            self.received.fetch_add(1, Ordering::SeqCst);
            let mut byte = [0; 1];
            if path == "/hold" || path == "/break" {
                tokio::select! {
                    () = released => {}
                    // The client has gone.
                    _ = stream.read(&mut byte) => {}
                }
            } else {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
            self.in_flight.fetch_sub(1, Ordering::SeqCst);
            if path == "/break" || stream.get_mut().write_all(OK).await.is_err() {
                return;
            }
        }
    }
}

/// Starts an application that answers every request immediately with 200. Returns its address.
pub async fn immediate() -> String {
    answering(|_| OK.to_vec()).await
}

/// Starts an application that answers every request immediately with 200, and with the head that it has received as the body. Returns
/// its address.
pub async fn echo() -> String {
    answering(|head| format!("HTTP/1.1 200 OK\r\ncontent-length: {}\r\n\r\n{head}", head.len()).into_bytes())
        .await
}

/// Starts an application that answers each request by its head.
async fn answering(answer: impl Fn(&str) -> Vec<u8> + Send + Sync + Clone + 'static) -> String {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let answer = answer.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while let Some(head) = next_head(&mut stream).await {
                    if stream.get_mut().write_all(&answer(&head)).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

/// Starts an application that works on each request for 50 ms and needs one of `workers` for it. Other
/// requests queue inside the application. Returns its address.
pub async fn with_workers(workers: Arc<Semaphore>) -> String {
    let (listener, address) = listen().await;
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let workers = workers.clone();
            tokio::spawn(async move {
                let mut stream = BufReader::new(stream);
                while next_request(&mut stream).await.is_some() {
                    let Ok(worker) = workers.acquire().await else { return };
                    tokio::time::sleep(Duration::from_millis(50)).await;
                    drop(worker);
                    if stream.get_mut().write_all(OK).await.is_err() {
                        return;
                    }
                }
            });
        }
    });
    address
}

async fn listen() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("an address").to_string();
    (listener, address)
}

/// Reads the next request and returns its path, or `None` when the connection has ended.
async fn next_request(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let head = next_head(stream).await?;
    head.split(' ').nth(1).map(str::to_owned)
}

/// Reads the next request and returns its head, or `None` when the connection has ended.
async fn next_head(stream: &mut BufReader<TcpStream>) -> Option<String> {
    let (mut head, mut length) = (String::new(), 0);
    loop {
        let mut line = Vec::new();
        if stream.read_until(b'\n', &mut line).await.ok()? == 0 {
            return None;
        }
        if line == b"\r\n" {
            break;
        }
        let line = String::from_utf8_lossy(&line);
        if let Some((name, value)) = line.split_once(':')
            && name.eq_ignore_ascii_case("content-length")
        {
            length = value.trim().parse().ok()?;
        }
        head.push_str(&line);
    }
    let mut body = vec![0; length];
    stream.read_exact(&mut body).await.ok()?;
    Some(head)
}
