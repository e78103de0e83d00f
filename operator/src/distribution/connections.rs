//! The connections of the control port: a maximum for those of strangers, for those of each source, and for all, and
//! TCP keepalive. A connection is a stranger's until it has begun a session or sent a report of one. Strangers cannot take
//! the places of sidecars that are connected. When there are too many, the oldest of the source that has by far the most
//! makes room, so that a few sources do not keep new sidecars out.

use std::collections::{BTreeMap, HashMap};
use std::future::{Ready, ready};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::middleware::AddExtension;
use axum_server::accept::Accept;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
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
    all: usize,
    strangers: usize,
    /// Number of the next connection.
    next: u64,
    sources: HashMap<IpAddr, Source>,
}

#[derive(Debug, Default)]
struct Source {
    all: usize,
    /// The strangers' connections by their number, so the oldest first. Notified to end one.
    strangers: BTreeMap<u64, Arc<Notify>>,
}

impl Taken {
    fn add(&mut self, source: IpAddr) -> (u64, Arc<Notify>) {
        let (number, end) = (self.next, Arc::new(Notify::new()));
        self.next += 1;
        self.all += 1;
        self.strangers += 1;
        let of_source = self.sources.entry(source).or_default();
        of_source.all += 1;
        of_source.strangers.insert(number, end.clone());
        (number, end)
    }

    /// Notes that a connection is no longer a stranger's. Returns what ends it, or `None` if it was none.
    fn remove_stranger(&mut self, source: IpAddr, number: u64) -> Option<Arc<Notify>> {
        let end = self.sources.get_mut(&source)?.strangers.remove(&number)?;
        self.strangers -= 1;
        Some(end)
    }

    fn remove(&mut self, source: IpAddr, number: u64) {
        self.remove_stranger(source, number);
        self.all -= 1;
        let Some(of_source) = self.sources.get_mut(&source) else { return };
        of_source.all -= 1;
        if of_source.all == 0 {
            self.sources.remove(&source);
        }
    }

    /// Ends the oldest connection of the source with the most strangers, unless a source that has `own` of them would
    /// only displace its like.
    fn evict(&mut self, own: usize) -> bool {
        let largest = self.sources.iter().max_by_key(|(_, source)| source.strangers.len());
        let oldest = largest
            .filter(|(_, source)| source.strangers.len() > own + 1)
            .and_then(|(address, source)| Some((*address, *source.strangers.first_key_value()?.0)));
        let Some(end) = oldest.and_then(|(source, number)| self.remove_stranger(source, number)) else {
            return false;
        };
        end.notify_one();
        true
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
    number: u64,
    /// Notified if the connection makes room.
    end: Arc<Notify>,
    places: Arc<Places>,
}

impl Place {
    /// Notes that the connection is a sidecar's.
    pub(crate) fn is_sidecar(&self) {
        self.places.lock().remove_stranger(self.source, self.number);
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.places.lock().remove(self.source, self.number);
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
        let of_source = taken.sources.get(&source);
        let (all, strangers) = of_source.map_or((0, 0), |source| (source.all, source.strangers.len()));
        if taken.all >= maxima.total || all >= maxima.of_source || strangers >= maxima.strangers_of_source {
            return None;
        }
        if taken.strangers >= maxima.strangers && !taken.evict(strangers) {
            return None;
        }
        let (number, end) = taken.add(source);
        drop(taken);
        Some(Arc::new(Place { source, number, end, places: self.0.clone() }))
    }

    fn count(&self, stream: TcpStream) -> io::Result<Counted> {
        let place = self.place(stream.peer_addr()?.ip());
        let place = place.ok_or_else(|| io::Error::other("too many connections to the control port"))?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        stream.set_nodelay(true)?;
        Ok(Counted { stream, end: Box::pin(place.end.clone().notified_owned()), place })
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
    /// Completes if the connection makes room.
    end: Pin<Box<OwnedNotified>>,
    place: Arc<Place>,
}

impl AsyncRead for Counted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.end.as_mut().poll(cx).is_ready() {
            let reason =
                "the connection makes room for others, because its source has many without a session";
            return Poll::Ready(Err(io::Error::other(reason)));
        }
        Pin::new(&mut this.stream).poll_read(cx, buf)
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

    use futures::FutureExt as _;
    use tokio::io::AsyncReadExt as _;
    use tokio::net::TcpListener;

    use super::*;

    fn source(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }

    fn is_ended(place: &Place) -> bool {
        place.end.notified().now_or_never().is_some()
    }

    #[test]
    fn strangers_take_only_their_share_of_the_connections() {
        let maxima = Maxima { total: 6, strangers: 3, of_source: 4, strangers_of_source: 2 };
        let connections = Connections::with_maxima(maxima);
        let mut first: Vec<_> = (0..3).filter_map(|_| connections.place(source(1))).collect();
        assert_eq!(first.len(), 2, "of one source");
        for place in &first {
            place.is_sidecar();
            place.is_sidecar();
        }
        first.extend((0..3).filter_map(|_| connections.place(source(1))));
        assert_eq!(first.len(), 4, "sidecars and strangers of one source");
        first.iter().for_each(|place| place.is_sidecar());
        assert!(connections.place(source(1)).is_none());
        let others = [2, 3].map(|n| connections.place(source(n)).unwrap());
        assert!(connections.place(source(4)).is_none(), "of sidecars and strangers");
        assert!(!first.iter().chain(&others).any(|place| is_ended(place)));
        drop((first, others));
        let taken = connections.0.lock();
        assert!(taken.all == 0 && taken.strangers == 0 && taken.sources.is_empty());
    }

    #[test]
    fn the_oldest_stranger_of_the_source_that_has_the_most_makes_room() {
        let maxima = Maxima { total: 100, strangers: 6, of_source: 10, strangers_of_source: 4 };
        let connections = Connections::with_maxima(maxima);
        let sidecar = connections.place(source(1)).unwrap();
        sidecar.is_sidecar();
        let many: Vec<_> = (0..4).map(|_| connections.place(source(1)).unwrap()).collect();
        let few: Vec<_> = (0..2).map(|_| connections.place(source(2)).unwrap()).collect();
        let new = [connections.place(source(3)).unwrap(), connections.place(source(3)).unwrap()];
        let ended = |places: &[Arc<Place>]| places.iter().map(|place| is_ended(place)).collect::<Vec<_>>();
        assert_eq!(ended(&many), [true, true, false, false]);
        assert!(connections.place(source(3)).is_none(), "all sources have two");
        assert!(!is_ended(&sidecar) && ended(&few) == [false; 2] && ended(&new) == [false; 2]);
        drop(many);
        assert!(connections.place(source(3)).is_some());
    }

    #[tokio::test]
    async fn a_connection_that_makes_room_ends() {
        let connections = Connections::with_maxima(Maxima { strangers: 2, ..MAXIMA });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut clients = Vec::new();
        let mut accepted = Vec::new();
        for _ in 0..2 {
            clients.push(TcpStream::connect(listener.local_addr().unwrap()).await.unwrap());
            accepted.push(connections.count(listener.accept().await.unwrap().0).unwrap());
        }
        let mut oldest = accepted.remove(0);
        let reading = tokio::spawn(async move { oldest.read_u8().await.unwrap_err().to_string() });
        tokio::task::yield_now().await;
        let _new = connections.place(source(9)).unwrap();
        assert!(reading.await.unwrap().contains("makes room"));
    }
}
