//! Many requests at once, each on a connection of its own, so that a Service spreads them over its pods.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::Semaphore;

/// One answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckResponse {
    /// The status code; 0 when there was no answer.
    pub status: u16,
    /// The head, in lower case.
    pub head: String,
    /// The body.
    pub body: String,
}

impl CheckResponse {
    /// A header's value.
    #[must_use]
    pub fn header(&self, name: &str) -> Option<&str> {
        self.head.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(": ")).map(str::trim)
    }
}

/// Sends one GET with headers.
pub async fn get(address: &str, path: &str, headers: &[(&str, &str)]) -> CheckResponse {
    let exchange = async {
        let mut tcp = TcpStream::connect(address).await?;
        let mut request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n");
        for (name, value) in headers {
            request.push_str(&format!("{name}: {value}\r\n"));
        }
        request.push_str("\r\n");
        tcp.write_all(request.as_bytes()).await?;
        let mut bytes = Vec::new();
        tcp.read_to_end(&mut bytes).await?;
        Ok::<_, std::io::Error>(String::from_utf8_lossy(&bytes).into_owned())
    };
    let text = match tokio::time::timeout(Duration::from_secs(30), exchange).await {
        Ok(Ok(text)) => text,
        Ok(Err(error)) => return CheckResponse { status: 0, head: error.to_string(), body: String::new() },
        Err(_) => return CheckResponse { status: 0, head: "no answer".into(), body: String::new() },
    };
    let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
    let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
    CheckResponse { status, head: head.to_lowercase(), body: body.to_owned() }
}

/// What became of many requests.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct Outcome {
    /// How many of each status code.
    pub by_status: BTreeMap<u16, usize>,
    /// How many each pod admitted.
    pub by_pod: BTreeMap<String, usize>,
}

impl Outcome {
    /// How many had this status code.
    #[must_use]
    pub fn count(&self, status: u16) -> usize {
        self.by_status.get(&status).copied().unwrap_or(0)
    }
}

/// Sends `n` GETs, at most `at_once` at a time.
pub async fn many(address: &str, n: usize, at_once: usize, headers: &[(&str, &str)]) -> Outcome {
    let permits = Arc::new(Semaphore::new(at_once));
    let mut tasks = tokio::task::JoinSet::new();
    for _ in 0..n {
        let (permits, address) = (permits.clone(), address.to_owned());
        let headers: Vec<(String, String)> =
            headers.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect();
        tasks.spawn(async move {
            let _permit = permits.acquire().await;
            let headers: Vec<(&str, &str)> = headers.iter().map(|(k, v)| (k.as_str(), v.as_str())).collect();
            get(&address, "/", &headers).await
        });
    }
    let mut outcome = Outcome::default();
    while let Some(answer) = tasks.join_next().await {
        let Ok(answer) = answer else { continue };
        *outcome.by_status.entry(answer.status).or_default() += 1;
        if let (200, Some(pod)) = (answer.status, answer.header("x-pod")) {
            *outcome.by_pod.entry(pod.to_owned()).or_default() += 1;
        }
    }
    outcome
}

/// One client that keeps its connection, as a pooled client does: it opens a new one when the server says
/// `connection: close`, or has closed it while it was idle.
#[derive(Debug)]
pub struct KeepAlive {
    address: String,
    connection: Option<TcpStream>,
}

impl KeepAlive {
    /// A client of `address`, not yet connected.
    #[must_use]
    pub fn new(address: &str) -> Self {
        Self { address: address.to_owned(), connection: None }
    }

    /// Sends a GET; returns the status code, 0 when there is no answer even on a new connection.
    pub async fn get(&mut self) -> u16 {
        let reused = self.connection.is_some();
        match self.exchange().await {
            Ok(status) => status,
            // A kept connection may be closed at the very moment of its reuse: every client tries a GET again.
            Err(_) if reused => {
                self.connection = None;
                self.exchange().await.unwrap_or(0)
            }
            Err(_) => 0,
        }
    }

    async fn exchange(&mut self) -> std::io::Result<u16> {
        let mut tcp = match self.connection.take() {
            Some(tcp) => tcp,
            None => TcpStream::connect(&self.address).await?,
        };
        tcp.write_all(format!("GET / HTTP/1.1\r\nhost: {}\r\n\r\n", self.address).as_bytes()).await?;
        let (mut text, mut buffer) = (String::new(), [0; 4096]);
        loop {
            let n = tokio::time::timeout(Duration::from_secs(30), tcp.read(&mut buffer)).await??;
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
            let status = head.split(' ').nth(1).and_then(|code| code.parse().ok()).unwrap_or(0);
            if length.is_some() && !head.contains("connection: close") {
                self.connection = Some(tcp);
            }
            return Ok(status);
        }
    }
}
