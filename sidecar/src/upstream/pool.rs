//! The connections of one worker to one application: idle HTTP/1 connections, the newest first, which serve any
//! client; and for each client's HTTP/2 connection one of its own, because streams of one connection share its window
//! and its number of streams: a client that takes up both must not stop another.
//!
//! To an application on this host's loopback they come from [`SOURCES`] and not from 127.0.0.1: many applications trust
//! that one, and would trust everybody. Where it cannot be had (only Linux has all of 127/8), the source is the usual.

use std::fmt;
use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, lookup_host};

use crate::upstream::body::RequestBody;

/// How many idle connections a worker keeps.
const MAX_IDLE: usize = 256;
/// How long one may be idle. Node and uvicorn close theirs after 5 s: ending ours before that avoids meeting a
/// connection that is just being closed.
const IDLE: Duration = Duration::from_secs(4);
/// How long connecting may take; the application is in the same pod, or near.
const CONNECT: Duration = Duration::from_secs(5);
/// The sources of connections to an application on the loopback. Istio's sidecars use the first for the same purpose,
/// so that it is known; the others are for when its ports are used up.
const SOURCES: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 0, 0, 6), Ipv4Addr::new(127, 0, 0, 7), Ipv4Addr::new(127, 0, 0, 8)];
/// The largest head, and how far the buffers of an HTTP/1 connection grow: many clients at their worst must fit into the
/// memory of a sidecar, and on a loopback larger buffers are no faster.
pub(crate) const MAX_BUFFER: usize = 32 * 1024;
/// HTTP/2 windows of a stream and of a connection: what the slower side of a proxy has to hold.
pub(crate) const STREAM_WINDOW: u32 = 64 * 1024;
/// See [`STREAM_WINDOW`].
pub(crate) const CONNECTION_WINDOW: u32 = 1 << 20;

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
            // A port that is no port, such as 99999.
            None if authority.as_str() != authority.host() => return Err(refuse()),
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
        Arc::new(Self { upstream, idle: Mutex::default() })
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

    async fn connect2(&self) -> io::Result<Sender2> {
        let io = TokioIo::new(self.dial().await?);
        let (sender, connection) = http2::Builder::new(TokioExecutor::new())
            .timer(TokioTimer::new())
            .initial_stream_window_size(STREAM_WINDOW)
            .initial_connection_window_size(CONNECTION_WINDOW)
            .max_send_buf_size(STREAM_WINDOW as usize)
            .handshake(io)
            .await
            .map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "an HTTP/2 connection to the application ended");
            }
        });
        Ok(sender)
    }

    /// Closes what was idle for too long; called now and then.
    pub(crate) fn sweep(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(sender, since)| !sender.is_closed() && since.elapsed() <= IDLE);
    }

    async fn dial(&self) -> io::Result<TcpStream> {
        let connecting = async {
            if let Some(address) = self.upstream.address {
                return dial(address).await;
            }
            let mut failed = io::ErrorKind::NotFound.into();
            for address in lookup_host(&self.upstream.authority).await? {
                match dial(address).await {
                    Ok(stream) => return Ok(stream),
                    Err(error) => failed = error,
                }
            }
            Err(failed)
        };
        let stream = tokio::time::timeout(CONNECT, connecting)
            .await
            .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
        stream.set_nodelay(true)?;
        Ok(stream)
    }
}

async fn dial(address: SocketAddr) -> io::Result<TcpStream> {
    match address {
        SocketAddr::V4(to) if to.ip().is_loopback() => match from_source()? {
            Some(socket) => socket.connect(address).await,
            None => TcpStream::connect(address).await,
        },
        _ => TcpStream::connect(address).await,
    }
}

/// `None` where there is no such source. Where all of its ports are in use that is an error: a client that could bring
/// this about must not be trusted for it.
fn from_source() -> io::Result<Option<TcpSocket>> {
    let mut in_use = io::ErrorKind::AddrInUse.into();
    for source in SOURCES {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.bind(&SocketAddr::from((source, 0)).into()) {
            Ok(()) => return Ok(Some(TcpSocket::from_std_stream(socket.into()))),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => in_use = error,
            Err(_) => return Ok(None),
        }
    }
    Err(in_use)
}

/// The HTTP/2 connection to the application that one client's HTTP/2 connection has.
#[derive(Debug)]
pub(crate) struct Own {
    pool: Arc<Pool>,
    /// The connection, and its number: streams that fail together replace it once.
    current: tokio::sync::Mutex<(u64, Option<Sender2>)>,
}

impl Own {
    pub(crate) fn new(pool: Arc<Pool>) -> Self {
        Self { pool, current: tokio::sync::Mutex::default() }
    }

    /// The connection, any but the one that failed; its number, and whether it was there before.
    pub(crate) async fn get(&self, failed: Option<u64>) -> io::Result<(Sender2, u64, bool)> {
        let current = tokio::time::timeout(CONNECT, self.current.lock()).await;
        let mut current = current.map_err(|_| io::ErrorKind::TimedOut)?;
        let (number, sender) = &mut *current;
        if let Some(sender) = sender.as_ref().filter(|sender| !sender.is_closed() && failed != Some(*number))
        {
            return Ok((sender.clone(), *number, true));
        }
        let fresh = self.pool.connect2().await?;
        *number += 1;
        *sender = Some(fresh.clone());
        Ok((fresh, *number, false))
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
