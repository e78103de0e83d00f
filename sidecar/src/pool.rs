//! The connections of one worker to one application: idle HTTP/1 connections, the newest first, and one shared
//! HTTP/2 connection.

use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::net::TcpStream;

use crate::body::RequestBody;

/// How many idle connections a worker keeps.
const MAX_IDLE: usize = 256;
/// How long one may be idle. Node and uvicorn close theirs after 5 s: ending ours before that avoids meeting a
/// connection that is just being closed.
const IDLE: Duration = Duration::from_secs(4);
/// How long connecting may take; the application is in the same pod, or near.
const CONNECT: Duration = Duration::from_secs(5);
/// The largest head of a response, and how far a read buffer grows.
pub(crate) const MAX_BUFFER: usize = 64 * 1024;
/// HTTP/2 windows of a stream and of a connection.
pub(crate) const STREAM_WINDOW: u32 = 1 << 20;
/// See [`STREAM_WINDOW`].
pub(crate) const CONNECTION_WINDOW: u32 = 4 << 20;

/// Where an application listens: `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    authority: String,
    address: Option<SocketAddr>,
}

/// A text that names no upstream.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no address of an application: HOST:PORT or http://HOST:PORT is needed (no path, no TLS)")]
pub struct NoUpstream(String);

impl FromStr for Upstream {
    type Err = NoUpstream;

    fn from_str(text: &str) -> Result<Self, NoUpstream> {
        let refuse = || NoUpstream(text.to_owned());
        let plain = text.strip_prefix("http://").unwrap_or(text);
        let authority: http::uri::Authority =
            plain.strip_suffix('/').unwrap_or(plain).parse().map_err(|_| refuse())?;
        if authority.host().is_empty() || authority.as_str().contains('@') {
            return Err(refuse());
        }
        let authority = match authority.port_u16() {
            Some(0) => return Err(refuse()),
            Some(_) => authority.to_string(),
            None if text.starts_with("http://") => format!("{authority}:80"),
            None => return Err(refuse()),
        };
        Ok(Self { address: authority.parse().ok(), authority })
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.authority)
    }
}

/// An HTTP/1 connection.
pub(crate) type Sender = http1::SendRequest<RequestBody>;
/// An HTTP/2 connection.
pub(crate) type Sender2 = http2::SendRequest<RequestBody>;

/// A worker's connections to one application.
#[derive(Debug)]
pub(crate) struct Pool {
    pub(crate) upstream: Upstream,
    idle: Mutex<Vec<(Sender, Instant)>>,
    shared: Mutex<Option<Sender2>>,
}

/// An HTTP/1 connection in use. Dropped, it is closed.
#[derive(Debug)]
pub(crate) struct Lease {
    pub(crate) sender: Sender,
    pool: Arc<Pool>,
}

impl Lease {
    /// For the next request.
    pub(crate) fn give_back(self) {
        if self.sender.is_closed() {
            return;
        }
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push((self.sender, Instant::now()));
        }
    }
}

impl Pool {
    pub(crate) fn new(upstream: Upstream) -> Arc<Self> {
        Arc::new(Self { upstream, idle: Mutex::default(), shared: Mutex::default() })
    }

    /// An idle connection that lives, if there is one.
    pub(crate) fn idle(self: &Arc<Self>) -> Option<Lease> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        // The newest first; one that still finishes its last exchange is passed over.
        let mut at = idle.len();
        while at > 0 {
            at -= 1;
            let (sender, since) = &idle[at];
            if sender.is_closed() || since.elapsed() > IDLE {
                idle.remove(at);
            } else if sender.is_ready() {
                let (sender, _) = idle.remove(at);
                return Some(Lease { sender, pool: self.clone() });
            }
        }
        None
    }

    /// A new connection.
    pub(crate) async fn connect(self: &Arc<Self>) -> io::Result<Lease> {
        let io = TokioIo::new(self.dial().await?);
        let (sender, connection) =
            http1::Builder::new().max_buf_size(MAX_BUFFER).handshake(io).await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to the application ended");
            }
        });
        Ok(Lease { sender, pool: self.clone() })
    }

    /// The HTTP/2 connection, and whether it carried requests before.
    pub(crate) async fn shared(&self, fresh: bool) -> io::Result<(Sender2, bool)> {
        if !fresh && let Some(sender) = self.living_shared() {
            return Ok((sender, true));
        }
        let io = TokioIo::new(self.dial().await?);
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .handshake(io)
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an HTTP/2 connection to the application ended");
            }
        });
        *self.shared.lock().unwrap_or_else(PoisonError::into_inner) = Some(sender.clone());
        Ok((sender, false))
    }

    /// Closes what was idle for too long; called now and then.
    pub(crate) fn sweep(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(sender, since)| !sender.is_closed() && since.elapsed() <= IDLE);
    }

    fn living_shared(&self) -> Option<Sender2> {
        let shared = self.shared.lock().unwrap_or_else(PoisonError::into_inner);
        shared.as_ref().filter(|sender| !sender.is_closed()).cloned()
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        let connecting = async {
            match self.upstream.address {
                Some(address) => TcpStream::connect(address).await,
                None => TcpStream::connect(&self.upstream.authority).await,
            }
        };
        let stream = tokio::time::timeout(CONNECT, connecting)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_host_and_a_port_and_nothing_else() {
        for good in ["127.0.0.1:8080", "http://127.0.0.1:8080", "http://127.0.0.1:8080/", "[::1]:80"] {
            assert!(good.parse::<Upstream>().unwrap().address.is_some(), "{good}");
        }
        assert_eq!("http://localhost".parse::<Upstream>().unwrap().to_string(), "localhost:80");
        for bad in ["", "8080", "localhost", "https://a:1", "http://a:1/x", "a:0", "a:99999", "u@a:1"] {
            assert!(bad.parse::<Upstream>().is_err(), "{bad}");
        }
    }
}
