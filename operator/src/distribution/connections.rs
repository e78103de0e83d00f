//! The connections of the control port: a maximum for those of strangers, for those of each source, and for all, and
//! TCP keepalive. A connection is a stranger's until it has begun a session or sent a report of one, so strangers cannot
//! take the places of sidecars that are connected.

use std::collections::HashMap;
use std::future::{Ready, ready};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::middleware::AddExtension;
use axum_server::accept::Accept;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tower::Layer as _;

/// The maxima of a control port.
const MAXIMA: Maxima = Maxima { total: 45_000, strangers: 5_000, of_source: 1_000, strangers_of_source: 250 };
/// Idle time after which the kernel probes whether the sidecar still exists.
const KEEPALIVE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
struct Maxima {
    /// All connections: one for each session, one for its reports, and strangers.
    total: usize,
    strangers: usize,
    /// Connections of one source. The pods of a node may share an address.
    of_source: usize,
    strangers_of_source: usize,
}

/// Accepts connections up to the maxima, and closes further ones.
#[derive(Debug, Clone)]
pub(crate) struct Connections(Arc<Places>);

#[derive(Debug)]
struct Places {
    maxima: Maxima,
    taken: Mutex<Taken>,
}

#[derive(Debug, Default)]
struct Taken {
    total: Count,
    sources: HashMap<IpAddr, Count>,
}

#[derive(Debug, Default, Clone, Copy)]
struct Count {
    all: usize,
    strangers: usize,
}

impl Taken {
    /// Changes the counts of a source, and those of all.
    fn count(&mut self, source: IpAddr, change: impl Fn(&mut Count)) {
        change(&mut self.total);
        let of_source = self.sources.entry(source).or_default();
        change(of_source);
        if of_source.all == 0 {
            self.sources.remove(&source);
        }
    }
}

impl Places {
    fn lock(&self) -> MutexGuard<'_, Taken> {
        self.taken.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// One of the connections.
#[derive(Debug)]
pub(crate) struct Place {
    source: IpAddr,
    is_stranger: AtomicBool,
    places: Arc<Places>,
}

impl Place {
    /// Notes that the connection is a sidecar's.
    pub(crate) fn is_sidecar(&self) {
        if self.is_stranger.swap(false, Ordering::Relaxed) {
            self.places.lock().count(self.source, |count| count.strangers -= 1);
        }
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.is_sidecar();
        self.places.lock().count(self.source, |count| count.all -= 1);
    }
}

impl Connections {
    /// Creates the connections of a control port.
    pub(crate) fn new() -> Self {
        Self::with_maxima(MAXIMA)
    }

    fn with_maxima(maxima: Maxima) -> Self {
        Self(Arc::new(Places { maxima, taken: Mutex::default() }))
    }

    fn place(&self, source: IpAddr) -> Option<Arc<Place>> {
        // Not the network: the pods of a zone may share a /64.
        let source = source.to_canonical();
        let maxima = self.0.maxima;
        let mut taken = self.0.lock();
        let of_source = taken.sources.get(&source).copied().unwrap_or_default();
        let is_full = taken.total.all >= maxima.total
            || taken.total.strangers >= maxima.strangers
            || of_source.all >= maxima.of_source
            || of_source.strangers >= maxima.strangers_of_source;
        if is_full {
            return None;
        }
        taken.count(source, |count| {
            count.all += 1;
            count.strangers += 1;
        });
        drop(taken);
        Some(Arc::new(Place { source, is_stranger: AtomicBool::new(true), places: self.0.clone() }))
    }

    fn count(&self, stream: TcpStream) -> io::Result<Counted> {
        let place = self.place(stream.peer_addr()?.ip());
        let place = place.ok_or_else(|| io::Error::other("too many connections to the control port"))?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        stream.set_nodelay(true)?;
        Ok(Counted { stream, place })
    }
}

impl<S> Accept<TcpStream, S> for Connections {
    type Stream = Counted;
    type Service = AddExtension<S, Arc<Place>>;
    type Future = Ready<io::Result<(Counted, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        ready(self.count(stream).map(|stream| {
            let service = Extension(stream.place.clone()).layer(service);
            (stream, service)
        }))
    }
}

/// A connection that is counted until it ends.
#[derive(Debug)]
pub(crate) struct Counted {
    stream: TcpStream,
    place: Arc<Place>,
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

    fn source(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }

    #[test]
    fn strangers_take_only_their_share_of_the_connections() {
        let maxima = Maxima { total: 6, strangers: 3, of_source: 4, strangers_of_source: 2 };
        let connections = Connections::with_maxima(maxima);
        let mut first: Vec<_> = (0..3).filter_map(|_| connections.place(source(1))).collect();
        assert_eq!(first.len(), 2, "of one source");
        let second = connections.place(source(2)).unwrap();
        assert!(connections.place(source(3)).is_none(), "of all");
        for place in &first {
            place.is_sidecar();
            place.is_sidecar();
        }
        first.extend((0..3).filter_map(|_| connections.place(source(1))));
        assert_eq!(first.len(), 4, "sidecars and strangers of one source");
        first.iter().for_each(|place| place.is_sidecar());
        assert!(connections.place(source(1)).is_none());
        second.is_sidecar();
        let third = connections.place(source(3)).unwrap();
        assert!(connections.place(source(3)).is_none(), "of sidecars and strangers");
        drop((first, second, third));
        let taken = connections.0.lock();
        assert!(taken.total.all == 0 && taken.total.strangers == 0 && taken.sources.is_empty());
    }
}
