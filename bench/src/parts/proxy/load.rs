//! A small upstream, and concurrent clients of a proxy: persistent connections, each waiting for its response
//! before it sends the next request.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const CONNECTIONS: usize = 32;
const RESPONSE: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\nhello\n";
const HEAD_END: &[u8] = b"\r\n\r\n";

/// Starts an upstream that answers every request with a few bytes, for as long as the runtime lives.
pub(crate) async fn upstream() -> anyhow::Result<SocketAddr> {
    upstream_of(RESPONSE).await
}

/// Starts an upstream that answers every request with this response.
pub(crate) async fn upstream_of(response: &'static [u8]) -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let _ = tcp.set_nodelay(true);
            tokio::spawn(async move {
                // A request may have a long target.
                let (mut buffer, mut filled) = (vec![0; 64 << 10], 0);
                while let Some(n) = tcp.read(&mut buffer[filled..]).await.ok().filter(|&n| n > 0) {
                    filled += n;
                    if buffer[..filled].ends_with(HEAD_END) {
                        filled = 0;
                        if tcp.write_all(response).await.is_err() {
                            break;
                        }
                    }
                }
            });
        }
    });
    Ok(address)
}

/// Numbers of responses by status: 200, 429 and any other.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Responses {
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    pub(crate) other: u64,
}

impl std::ops::AddAssign for Responses {
    fn add_assign(&mut self, responses: Self) {
        self.admitted += responses.admitted;
        self.denied += responses.denied;
        self.other += responses.other;
    }
}

/// Sends `requests` GETs of `path` over [`CONNECTIONS`] connections. The API keys rotate from `PREFIX-0` to
/// `PREFIX-(CLIENTS - 1)`.
pub(crate) async fn load(
    address: SocketAddr,
    path: &'static str,
    prefix: &str,
    clients: usize,
    requests: usize,
) -> anyhow::Result<Responses> {
    load_as(address, path, api_keys(prefix, clients), requests).await
}

/// Returns headers with the API keys from `PREFIX-0` to `PREFIX-(CLIENTS - 1)`.
pub(crate) fn api_keys(prefix: &str, clients: usize) -> Arc<[String]> {
    (0..clients).map(|client| format!("x-api-key: {prefix}-{client}")).collect()
}

/// Sends `requests` GETs of `path` over [`CONNECTIONS`] connections, each with one of these headers in turn.
pub(crate) async fn load_as(
    address: SocketAddr,
    path: &'static str,
    headers: Arc<[String]>,
    requests: usize,
) -> anyhow::Result<Responses> {
    Ok(load_timed(address, path, headers, requests).await?.0)
}

/// Does the same as [`load_as`], and also returns how long each response took, in no order.
pub(crate) async fn load_timed(
    address: SocketAddr,
    path: &'static str,
    headers: Arc<[String]>,
    requests: usize,
) -> anyhow::Result<(Responses, Vec<Duration>)> {
    load_at(address, path, headers, requests, Pace { connections: CONNECTIONS, rate: None }).await
}

/// Time between the connections and the first request at a rate.
const SETTLE: Duration = Duration::from_millis(100);

/// How requests are sent.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Pace {
    pub(crate) connections: usize,
    /// Requests a second of all connections together. Their times then count from the moment at which they were due. Without
    /// a rate, a connection sends a request as soon as it has the response to the one before.
    pub(crate) rate: Option<f64>,
}

/// Does the same as [`load_timed`], at a pace.
pub(crate) async fn load_at(
    address: SocketAddr,
    path: &'static str,
    headers: Arc<[String]>,
    requests: usize,
    pace: Pace,
) -> anyhow::Result<(Responses, Vec<Duration>)> {
    let mut connections = Vec::with_capacity(pace.connections);
    for _ in 0..pace.connections {
        let tcp = TcpStream::connect(address).await?;
        tcp.set_nodelay(true)?;
        connections.push(tcp);
    }
    // The first request at a rate does not wait for what the proxy does with new connections.
    let start = Instant::now() + pace.rate.map_or(Duration::ZERO, |_| SETTLE);
    let tasks: Vec<_> = connections
        .into_iter()
        .enumerate()
        .map(|(first, tcp)| {
            let numbers = (first..requests).step_by(pace.connections);
            let due = move |number| Some(start + Duration::from_secs_f64(number as f64 / pace.rate?));
            tokio::spawn(run_connection(tcp, path, headers.clone(), numbers, due))
        })
        .collect();
    let (mut all, mut times) = (Responses::default(), Vec::with_capacity(requests));
    for task in tasks {
        let (responses, waits) = task.await.context("a connection panicked")??;
        all += responses;
        times.extend(waits);
    }
    Ok((all, times))
}

async fn run_connection(
    mut tcp: TcpStream,
    path: &str,
    headers: Arc<[String]>,
    numbers: impl Iterator<Item = usize>,
    due: impl Fn(usize) -> Option<Instant>,
) -> anyhow::Result<(Responses, Vec<Duration>)> {
    use std::io::Write as _;
    let (mut request, mut buffer) = (Vec::new(), vec![0; 8192]);
    let (mut responses, mut times) = (Responses::default(), Vec::new());
    for number in numbers {
        let header = &headers[number % headers.len()];
        request.clear();
        write!(request, "GET {path} HTTP/1.1\r\nhost: bench\r\n{header}\r\n\r\n")?;
        let due = due(number);
        if let Some(due) = due {
            wait_until(due).await;
        }
        let start = due.unwrap_or_else(Instant::now);
        tcp.write_all(&request).await?;
        match read_response(&mut tcp, &mut buffer).await? {
            200 => responses.admitted += 1,
            429 => responses.denied += 1,
            _ => responses.other += 1,
        }
        times.push(start.elapsed());
    }
    Ok((responses, times))
}

/// Waits for a moment. Timers have steps of a millisecond, which is longer than what is measured.
async fn wait_until(due: Instant) {
    if let Some(early) = due.checked_sub(Duration::from_millis(2)) {
        tokio::time::sleep_until(early.into()).await;
    }
    while Instant::now() < due {
        tokio::task::yield_now().await;
    }
}

/// Reads one response and returns its status.
pub(crate) async fn read_response(tcp: &mut TcpStream, buffer: &mut [u8]) -> anyhow::Result<u16> {
    let (mut filled, mut length) = (0, None);
    while length.is_none_or(|length| filled < length) {
        let n = tcp.read(&mut buffer[filled..]).await?;
        ensure!(n > 0, "the proxy closed a connection in the middle of a response");
        filled += n;
        if length.is_none()
            && let Some(head) = buffer[..filled].windows(HEAD_END.len()).position(|at| at == HEAD_END)
        {
            length = Some(head + HEAD_END.len() + content_length(&buffer[..head])?);
        }
    }
    ensure!(length == Some(filled), "the proxy sent more than its response");
    std::str::from_utf8(&buffer[9..12])?.parse().context("a response has no status")
}

fn content_length(head: &[u8]) -> anyhow::Result<usize> {
    let mut headers = std::str::from_utf8(head)?.lines().filter_map(|line| line.split_once(':'));
    let (_, length) = headers
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .context("a response has no Content-Length")?;
    Ok(length.trim().parse()?)
}
