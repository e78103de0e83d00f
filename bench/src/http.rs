//! A small upstream, and who calls a proxy before it: so many connections that are kept, each of which sends a request
//! when it has its answer.

use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context as _, ensure};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};

const CONNECTIONS: usize = 32;
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\ncontent-length: 6\r\n\r\nhello\n";
const END: &[u8] = b"\r\n\r\n";

/// An upstream that answers everything with a few bytes, for as long as the runtime lives.
pub(crate) async fn upstream() -> anyhow::Result<SocketAddr> {
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?;
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            let _ = tcp.set_nodelay(true);
            tokio::spawn(async move {
                let (mut buffer, mut filled) = ([0; 4096], 0);
                while let Some(n) = tcp.read(&mut buffer[filled..]).await.ok().filter(|&n| n > 0) {
                    filled += n;
                    if buffer[..filled].ends_with(END) {
                        filled = 0;
                        if tcp.write_all(ANSWER).await.is_err() {
                            break;
                        }
                    }
                }
            });
        }
    });
    Ok(address)
}

/// How many requests were answered with 200, with 429, and with something else.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Answers {
    pub(crate) admitted: u64,
    pub(crate) denied: u64,
    pub(crate) others: u64,
}

impl std::ops::AddAssign for Answers {
    fn add_assign(&mut self, other: Self) {
        self.admitted += other.admitted;
        self.denied += other.denied;
        self.others += other.others;
    }
}

/// Sends `requests` GETs of `path` over [`CONNECTIONS`] connections; the API keys are `PREFIX-0` to `PREFIX-CLIENTS`
/// in turn.
pub(crate) async fn load(
    address: SocketAddr,
    path: &'static str,
    prefix: &str,
    clients: usize,
    requests: usize,
) -> anyhow::Result<Answers> {
    let prefix: Arc<str> = prefix.into();
    let tasks: Vec<_> = (0..CONNECTIONS)
        .map(|first| tokio::spawn(connection(address, path, prefix.clone(), clients, requests, first)))
        .collect();
    let mut all = Answers::default();
    for task in tasks {
        all += task.await.context("a connection panicked")??;
    }
    Ok(all)
}

async fn connection(
    address: SocketAddr,
    path: &str,
    prefix: Arc<str>,
    clients: usize,
    requests: usize,
    first: usize,
) -> anyhow::Result<Answers> {
    use std::io::Write as _;
    let mut tcp = TcpStream::connect(address).await?;
    tcp.set_nodelay(true)?;
    let (mut request, mut answer) = (Vec::new(), vec![0; 8192]);
    let mut answers = Answers::default();
    for number in (first..requests).step_by(CONNECTIONS) {
        let client = number % clients;
        request.clear();
        write!(request, "GET {path} HTTP/1.1\r\nhost: bench\r\nx-api-key: {prefix}-{client}\r\n\r\n")?;
        tcp.write_all(&request).await?;
        match read(&mut tcp, &mut answer).await? {
            200 => answers.admitted += 1,
            429 => answers.denied += 1,
            _ => answers.others += 1,
        }
    }
    Ok(answers)
}

/// Reads one answer; its status.
async fn read(tcp: &mut TcpStream, buffer: &mut [u8]) -> anyhow::Result<u16> {
    let (mut filled, mut whole) = (0, None);
    while whole.is_none_or(|whole| filled < whole) {
        let n = tcp.read(&mut buffer[filled..]).await?;
        ensure!(n > 0, "the proxy closed a connection before its answer was whole");
        filled += n;
        if whole.is_none()
            && let Some(head) = buffer[..filled].windows(END.len()).position(|at| at == END)
        {
            whole = Some(head + END.len() + body(&buffer[..head])?);
        }
    }
    ensure!(whole == Some(filled), "the proxy sent more than its answer");
    std::str::from_utf8(&buffer[9..12])?.parse().context("an answer without a status")
}

/// The length of the body behind a head.
fn body(head: &[u8]) -> anyhow::Result<usize> {
    let mut lines = std::str::from_utf8(head)?.lines().filter_map(|line| line.split_once(':'));
    let (_, length) = lines
        .find(|(name, _)| name.eq_ignore_ascii_case("content-length"))
        .context("an answer without Content-Length")?;
    Ok(length.trim().parse()?)
}
