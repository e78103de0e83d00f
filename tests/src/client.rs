//! HTTP clients: single requests, concurrent requests, and a client that keeps its connection.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// Longest time that one request may take.
const TIMEOUT: Duration = Duration::from_secs(30);

/// An HTTP response.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Response {
    /// Status code, or 0 when no response arrived.
    pub status: u16,
    /// Status line and headers in lower case, or the reason why no response arrived.
    pub head: String,
    /// The body.
    pub body: String,
}

impl Response {
    /// Returns the value of a header.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::trim)
    }
}

/// Sends a GET request on a connection of its own.
pub async fn get(address: &str, path: &str, headers: &[(&str, &str)]) -> Response {
    let mut request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
    for (name, value) in headers {
        request.push_str(&format!("{name}: {value}\r\n"));
    }
    request.push_str("\r\n");
    send(address, request.as_bytes()).await
}

/// Sends these bytes on a connection of its own, and reads until the server closes it.
pub async fn send(address: &str, request: &[u8]) -> Response {
    let exchange = async {
        let mut tcp = TcpStream::connect(address).await?;
        tcp.write_all(request).await?;
        let mut bytes = Vec::new();
        tcp.read_to_end(&mut bytes).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = match tokio::time::timeout(TIMEOUT, exchange).await {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => return Response { status: 0, head: error.to_string(), body: String::new() },
        Err(_) => return Response { status: 0, head: "timed out".into(), body: String::new() },
    };
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    Response { status: status_code(head), head: head.to_lowercase(), body: body.to_owned() }
}

/// Responses to many requests, counted.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Tally {
    /// Number of responses by status code; 0 counts requests without a response.
    pub by_status: BTreeMap<u16, usize>,
    /// Number of responses with status 200 by the pod named in the header `x-pod`.
    pub by_pod: BTreeMap<String, usize>,
}

impl Tally {
    /// Returns the number of responses with this status code.
    #[must_use]
    pub fn count(&self, status: u16) -> usize {
        self.by_status.get(&status).copied().unwrap_or(0)
    }

    /// Counts a response.
    pub fn count_response(&mut self, response: &Response) {
        *self.by_status.entry(response.status).or_default() += 1;
        if let (200, Some(pod)) = (response.status, response.header("x-pod")) {
            *self.by_pod.entry(pod.to_owned()).or_default() += 1;
        }
    }

    /// Adds the counts of another tally.
    pub fn add(&mut self, other: Self) {
        for (status, count) in other.by_status {
            *self.by_status.entry(status).or_default() += count;
        }
        for (pod, count) in other.by_pod {
            *self.by_pod.entry(pod).or_default() += count;
        }
    }
}

/// Sends `total` GET requests, at most `concurrency` of them at the same time. Each request uses a connection
/// of its own, so a Service spreads them over its pods.
pub async fn get_many(address: &str, total: usize, concurrency: usize, headers: &[(&str, &str)]) -> Tally {
    let permits = Arc::new(Semaphore::new(concurrency));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..total {
        let (permits, address) = (permits.clone(), address.to_owned());
        let headers: Vec<(String, String)> =
            headers.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        tasks.spawn(async move {
            let _permit = permits.acquire().await;
            let headers: Vec<(&str, &str)> = headers.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            get(&address, "/", &headers).await
        });
    }
    let mut tally = Tally::default();
    while let Some(response) = tasks.join_next().await {
        let Ok(response) = response else { continue };
        tally.count_response(&response);
    }
    tally
}

/// A client that keeps its connection, as pooled clients do. It opens a new connection after a response with
/// `connection: close`, or when the server closed the kept one while it was idle.
#[derive(Debug)]
pub struct KeepAlive {
    address: String,
    path: String,
    connection: Option<TcpStream>,
}

impl KeepAlive {
    /// Creates a client of `address` without a connection.
    #[must_use]
    pub fn new(address: &str) -> Self {
        Self::at(address, "/")
    }

    /// Creates a client of a path of `address` without a connection.
    #[must_use]
    pub fn at(address: &str, path: &str) -> Self {
        Self { address: address.to_owned(), path: path.to_owned(), connection: None }
    }

    /// Sends a GET request and returns the status code, or 0 when even a new connection gets no response.
    pub async fn get(&mut self) -> u16 {
        self.get_with(&[]).await.status
    }

    /// Sends a GET request with these headers. The status is 0 when even a new connection gets no response.
    pub async fn get_with(&mut self, headers: &[(&str, &str)]) -> Response {
        let reused = self.connection.is_some();
        let mut result = self.exchange(headers).await;
        if result.is_err() && reused {
            // The server may close a kept connection just as it is reused. Every client retries a GET then.
            self.connection = None;
            result = self.exchange(headers).await;
        }
        let no_response =
            |error: std::io::Error| Response { status: 0, head: error.to_string(), body: String::new() };
        result.unwrap_or_else(no_response)
    }

    async fn exchange(&mut self, headers: &[(&str, &str)]) -> std::io::Result<Response> {
        let mut tcp = match self.connection.take() {
            Some(tcp) => tcp,
            None => TcpStream::connect(&self.address).await?,
        };
        let mut request = format!("GET {} HTTP/1.1\r\nhost: {}\r\n", self.path, self.address);
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        tcp.write_all(request.as_bytes()).await?;
        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        loop {
            let n = tokio::time::timeout(TIMEOUT, tcp.read(&mut buffer)).await??;
            if n == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            text.push_str(&String::from_utf8_lossy(&buffer[..n]).to_lowercase());
            let Some((head, body)) = text.split_once("\r\n\r\n") else { continue };
            let length = head
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.trim().parse::<usize>().ok());
            if length.is_some_and(|length| body.len() < length) {
                continue;
            }
            if length.is_some() && !head.contains("connection: close") {
                self.connection = Some(tcp);
            }
            return Ok(Response { status: status_code(head), head: head.to_owned(), body: body.to_owned() });
        }
    }
}

fn status_code(head: &str) -> u16 {
    head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0)
}
