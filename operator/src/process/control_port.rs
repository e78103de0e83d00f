//! The connections of the control port: a maximum for all and for each source, timeouts for TLS handshakes and heads,
//! and TCP keepalive. A session has no timeout: the sidecar is sent a comment now and then, and a connection that
//! does not take it ends.

use std::collections::HashMap;
use std::future::{Ready, ready};
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Router;
use axum_server::Handle;
use axum_server::accept::Accept;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use hyper_util::rt::TokioTimer;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// Maximum number of connections: one for each session, one for each report, and some for strangers.
const MAX_CONNECTIONS: usize = 25_000;
/// Maximum number of connections of one source. The pods of a node may share an address.
const MAX_PER_SOURCE: usize = 1_000;
/// Time for the TLS handshake, and for each head.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Size of the buffer of a connection, and so of the largest head, in bytes.
const MAX_HEAD: usize = 32 << 10;
/// Idle time after which the kernel probes whether the sidecar still exists.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// Serves the control port until it fails or the handle ends it.
pub(super) async fn serve(
    address: SocketAddr,
    tls: RustlsConfig,
    handle: Handle<SocketAddr>,
    router: Router,
) -> io::Result<()> {
    let bounded = Bounded::new(MAX_CONNECTIONS, MAX_PER_SOURCE);
    let acceptor = RustlsAcceptor::new(tls).handshake_timeout(TIMEOUT).acceptor(bounded);
    // Sidecars speak HTTP/1.
    let mut server = axum_server::bind(address).acceptor(acceptor).http1_only().handle(handle);
    server
        .http_builder()
        .http1()
        .timer(TokioTimer::new())
        .header_read_timeout(TIMEOUT)
        .max_buf_size(MAX_HEAD);
    server.serve(router.into_make_service_with_connect_info::<SocketAddr>()).await
}

/// Accepts connections up to a maximum, and closes further ones.
#[derive(Debug, Clone)]
struct Bounded(Arc<Places>);

#[derive(Debug)]
struct Places {
    max: usize,
    max_per_source: usize,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: usize,
    sources: HashMap<IpAddr, usize>,
}

/// One of the connections.
#[derive(Debug)]
struct Place {
    source: IpAddr,
    places: Arc<Places>,
}

impl Bounded {
    fn new(max: usize, max_per_source: usize) -> Self {
        Self(Arc::new(Places { max, max_per_source, taken: Mutex::default() }))
    }

    fn place(&self, source: IpAddr) -> Option<Place> {
        let mut taken = self.0.taken.lock().unwrap_or_else(PoisonError::into_inner);
        let of_source = taken.sources.get(&source).copied().unwrap_or_default();
        if taken.total >= self.0.max || of_source >= self.0.max_per_source {
            return None;
        }
        taken.total += 1;
        taken.sources.insert(source, of_source + 1);
        drop(taken);
        Some(Place { source, places: self.0.clone() })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.places.taken.lock().unwrap_or_else(PoisonError::into_inner);
        taken.total -= 1;
        match taken.sources.get_mut(&self.source) {
            Some(count) if *count > 1 => *count -= 1,
            _ => {
                taken.sources.remove(&self.source);
            }
        }
    }
}

impl<S> Accept<TcpStream, S> for Bounded {
    type Stream = Counted;
    type Service = S;
    type Future = Ready<io::Result<(Counted, S)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        ready(self.count(stream).map(|stream| (stream, service)))
    }
}

impl Bounded {
    fn count(&self, stream: TcpStream) -> io::Result<Counted> {
        let place = self.place(stream.peer_addr()?.ip().to_canonical());
        let place = place.ok_or_else(|| io::Error::other("too many connections to the control port"))?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        stream.set_nodelay(true)?;
        Ok(Counted { stream, _place: place })
    }
}

/// A connection that is counted until it ends.
#[derive(Debug)]
struct Counted {
    stream: TcpStream,
    _place: Place,
}

impl AsyncRead for Counted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_read(cx, buf)
    }
}

impl AsyncWrite for Counted {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.get_mut().stream).poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::net::Ipv4Addr;

    use super::*;

    #[test]
    fn a_source_cannot_take_all_connections() {
        let source = |n| IpAddr::from(Ipv4Addr::new(10, 0, 0, n));
        let bounded = Bounded::new(3, 2);
        let mut first: Vec<_> = (0..3).filter_map(|_| bounded.place(source(1))).collect();
        assert_eq!(first.len(), 2);
        let second = bounded.place(source(2)).unwrap();
        assert!(bounded.place(source(3)).is_none());
        first.pop();
        assert!(bounded.place(source(3)).is_some());
        drop((first, second));
        let taken = bounded.0.taken.lock().unwrap();
        assert!(taken.total == 0 && taken.sources.is_empty());
    }
}
