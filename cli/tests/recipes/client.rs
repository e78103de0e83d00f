//! A client that sends equal requests until one is denied.

use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::TcpStream;

use crate::process::Run;
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
