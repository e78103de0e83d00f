//! A client that sends equal requests until one is denied.

use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::process::{self, Run};
use Admitted::{AtLeast, Exactly};

/// The number of equal requests that are admitted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Admitted {
    /// So many, and no more.
    Exactly(usize),
    /// So many at least. No more are sent.
    AtLeast(usize),
}

/// Requests that are sent one after another: the beginning of a head, without its last line break.
#[derive(Debug)]
pub(crate) struct Requests(pub(crate) &'static str, pub(crate) Admitted);

#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    /// The head in lower case, and the body.
    pub(crate) text: String,
}

/// A client with one connection at a time.
pub(crate) struct Client<'a> {
    run: &'a Run,
    connection: Option<BufReader<TcpStream>>,
    /// The last response.
    pub(crate) last: String,
}

impl<'a> Client<'a> {
    pub(crate) fn new(run: &'a Run) -> Self {
        Self { run, connection: None, last: String::new() }
    }

    /// Sends a request.
    pub(crate) async fn send(&mut self, head: &str) -> Response {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => BufReader::new(TcpStream::connect(self.run.address).await.unwrap()),
        };
        connection.get_mut().write_all(format!("{head}\r\n\r\n").as_bytes()).await.unwrap();
        let (mut status, mut length, mut closes, mut text) = (0, 0, false, String::new());
        loop {
            let mut line = String::new();
            connection.read_line(&mut line).await.unwrap();
            line.make_ascii_lowercase();
            text.push_str(&line);
            let line = line.trim_end();
            if let Some(rest) = line.strip_prefix("http/1.1 ") {
                status = rest[..3].parse().unwrap();
            } else if let Some(value) = line.strip_prefix("content-length: ") {
                length = value.parse().unwrap();
            } else if line == "connection: close" {
                closes = true;
            } else if line.is_empty() {
                break;
            }
        }
        let mut body = vec![0; length];
        connection.read_exact(&mut body).await.unwrap();
        text.push_str(&String::from_utf8(body).unwrap());
        self.connection = Some(connection).filter(|_| !closes);
        Response { status, text }
    }

    /// Sends equal requests until one is denied with this status, or until enough are admitted.
    pub(crate) async fn flood(&mut self, head: &str, expected: Admitted, denied: u16) -> Admitted {
        let (Exactly(most) | AtLeast(most)) = expected;
        for admitted in 0..=most {
            if expected == AtLeast(admitted) {
                return expected;
            }
            let Response { status, text } = self.send(head).await;
            self.last = text;
            match status {
                200 | 401 => {}
                other if other == denied => return Exactly(admitted),
                other => panic!("{head:?}: {other}"),
            }
        }
        AtLeast(most + 1)
    }
}

/// Starts `sluice run` with a policy, in front of an application that refuses wrong passwords. It answers a marked request as
/// Sluice answers a denied one, a request with a body when it has the body, and one with `x-hold` never. A download has 300 bytes,
/// and a gRPC call reads 300 rows.
pub(crate) async fn start(policy: &str) -> Run {
    let answer = |received: &str| {
        let lacks_body = received.contains("content-length: 400") && !received.contains(BODY_END);
        if lacks_body || received.contains("x-hold: ") {
            return String::new();
        }
        let is_wrong = received.contains("x-password: wrong");
        let (status, headers, body) = match received {
            _ if received.contains(" /shop.") => {
                let status = if is_wrong { 16 } else { 0 };
                let headers =
                    format!("content-type: application/grpc\r\ngrpc-status: {status}\r\nx-rows: 300\r\n");
                ("200 OK", headers, String::new())
            }
            _ if received.contains(" /download") => ("200 OK", String::new(), "d".repeat(300)),
            _ if received.contains("x-rate-limited: ") => {
                ("429 Too Many Requests", String::new(), String::new())
            }
            _ if is_wrong => ("401 Unauthorized", String::new(), String::new()),
            _ => ("200 OK", String::new(), String::new()),
        };
        format!("HTTP/1.1 {status}\r\n{headers}content-length: {}\r\n\r\n{body}", body.len())
    };
    let file = tempfile::NamedTempFile::with_suffix(".yaml").unwrap();
    std::fs::write(file.path(), policy).unwrap();
    Run::start_before(answer, file.path(), &["--store", "memory"], &[]).await
}

/// The last bytes of [`upload`].
const BODY_END: &str = "zzzz";

/// Returns a request for a path with a body of 400 bytes.
pub(crate) fn upload(path: &str) -> String {
    let body = "z".repeat(396);
    // The client adds the line breaks that end a head.
    format!("PUT {path} HTTP/1.1\r\nhost: a\r\ncontent-length: 400\r\n\r\n{body}")
}

/// Waits until a metric has a value.
pub(crate) async fn until_metric(run: &Run, name: &str, value: u64) {
    let begun = Instant::now();
    let expected = format!("\n{name} {value}\n");
    loop {
        let metrics = process::get(run.admin, "/metrics").await;
        if metrics.contains(&expected) {
            return;
        }
        assert!(begun.elapsed() < Duration::from_secs(30), "{expected}: {metrics}");
    }
}

/// Returns the number of requests whose cost has been settled.
pub(crate) async fn settled(run: &Run) -> u64 {
    let metrics = process::get(run.admin, "/metrics").await;
    let lines = metrics.lines().filter(|line| line.starts_with("sluice_settlements_total{"));
    lines.map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap()).sum()
}
