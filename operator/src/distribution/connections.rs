//! The connections of the control port: a maximum for those of strangers, for those of each source, and for all, and
//! TCP keepalive. A connection is a stranger's until it has shown a verified token or the name of a session. Strangers
//! cannot take the places of sidecars that are connected, and must not stay for long. When there are too many, the oldest
//! of the source that has the most makes room if it has had its time, so that a few sources do not keep new sidecars out. Otherwise
//! a crowd of sidecars connects, node by node perhaps: each waits for its turn.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Duration;

use axum::Extension;
use axum::middleware::AddExtension;
use axum_server::accept::Accept;
use futures::future::BoxFuture;
use socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::sync::futures::OwnedNotified;
use tokio::time::{Instant, Sleep, sleep, timeout};
use tower::Layer as _;

/// The maxima of a control port.
const MAXIMA: Maxima = Maxima { total: 45_000, strangers: 5_000, of_source: 1_000, strangers_of_source: 250 };
/// Longest time that a connection waits for a place among the strangers.
const MAX_WAIT: Duration = Duration::from_secs(10);
/// Time in which a stranger's connection does not make room for others: that of a sidecar in a crowd.
const UNDISTURBED: Duration = Duration::from_secs(5);
/// Longest time for which a connection is a stranger's: the TLS handshake, the head, and the review of a token.
const MAX_STRANGE: Duration = Duration::from_secs(30);
/// Idle time after which the kernel probes whether the sidecar still exists.
const KEEPALIVE: Duration = Duration::from_secs(30);

#[derive(Debug, Clone, Copy)]
struct Maxima {
    /// All connections: one for each session, one for its reports, and strangers.
    total: usize,
    strangers: usize,
    /// Connections of one source, those that wait included. The pods of a node may share an address.
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
    /// Notified for each stranger that leaves, in the order in which others wait.
    left: Notify,
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
    /// Those that wait for a place among the strangers.
    waiting: usize,
    /// The strangers' connections by their number, so the oldest first.
    strangers: BTreeMap<u64, Stranger>,
}

#[derive(Debug)]
struct Stranger {
    since: Instant,
    /// Notified to end the connection.
    end: Arc<Notify>,
}

impl Taken {
    /// Admits a connection, which waits first.
    fn enter(&mut self, source: IpAddr, maxima: Maxima) -> bool {
        let of_source = self.sources.get(&source);
        let (all, strangers) =
            of_source.map_or((0, 0), |source| (source.all, source.strangers.len() + source.waiting));
        if self.all >= maxima.total || all >= maxima.of_source || strangers >= maxima.strangers_of_source {
            return false;
        }
        self.all += 1;
        let of_source = self.sources.entry(source).or_default();
        of_source.all += 1;
        of_source.waiting += 1;
        true
    }

    /// Gives a place among the strangers to a connection that waits, if there is one or another makes room.
    fn seat(&mut self, source: IpAddr, maxima: Maxima) -> Option<(u64, Arc<Notify>)> {
        let own = self.sources.get(&source).map_or(0, |source| source.strangers.len());
        if self.strangers >= maxima.strangers && !self.evict(own) {
            return None;
        }
        let of_source = self.sources.get_mut(&source)?;
        let (number, end) = (self.next, Arc::new(Notify::new()));
        of_source.waiting -= 1;
        of_source.strangers.insert(number, Stranger { since: Instant::now(), end: end.clone() });
        self.next += 1;
        self.strangers += 1;
        Some((number, end))
    }

    /// Notes that a connection is no longer a stranger's. Returns what ends it, or `None` if it was none.
    fn remove_stranger(&mut self, source: IpAddr, number: u64) -> Option<Arc<Notify>> {
        let stranger = self.sources.get_mut(&source)?.strangers.remove(&number)?;
        self.strangers -= 1;
        Some(stranger.end)
    }

    fn remove(&mut self, source: IpAddr) {
        self.all -= 1;
        let Some(of_source) = self.sources.get_mut(&source) else { return };
        of_source.all -= 1;
        if of_source.all == 0 {
            self.sources.remove(&source);
        }
    }

    /// Ends the oldest connection of the source with the most strangers, unless a source that has `own` of them would
    /// only displace its like, or it is young.
    fn evict(&mut self, own: usize) -> bool {
        let largest = self.sources.iter().max_by_key(|(_, source)| source.strangers.len());
        let oldest = largest
            .filter(|(_, source)| source.strangers.len() > own + 1)
            .and_then(|(address, source)| Some((*address, source.strangers.first_key_value()?)))
            .filter(|(_, (_, stranger))| stranger.since.elapsed() >= UNDISTURBED)
            .map(|(address, (number, _))| (address, *number));
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

    fn seat(&self, source: IpAddr) -> Option<(u64, Arc<Notify>)> {
        let mut taken = self.lock();
        let seated = taken.seat(source, self.maxima)?;
        if taken.strangers < self.maxima.strangers {
            // Several may have left at once.
            self.left.notify_one();
        }
        Some(seated)
    }
}

/// A connection that waits for a place. Dropping it ends the wait.
struct Waiting<'a> {
    source: IpAddr,
    places: &'a Places,
    is_seated: bool,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        if self.is_seated {
            return;
        }
        let mut taken = self.places.lock();
        if let Some(of_source) = taken.sources.get_mut(&self.source) {
            of_source.waiting -= 1;
        }
        taken.remove(self.source);
        drop(taken);
        // It may have been notified in vain.
        self.places.left.notify_one();
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
        if self.places.lock().remove_stranger(self.source, self.number).is_some() {
            self.places.left.notify_one();
        }
    }

    /// Reports whether the connection is still a stranger's.
    pub(super) fn is_stranger(&self) -> bool {
        let taken = self.places.lock();
        taken.sources.get(&self.source).is_some_and(|source| source.strangers.contains_key(&self.number))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.is_sidecar();
        self.places.lock().remove(self.source);
    }
}

impl Connections {
    /// Creates the connections of a control port.
    pub(crate) fn new() -> Self {
        Self::with_maxima(MAXIMA)
    }

    fn with_maxima(maxima: Maxima) -> Self {
        Self(Arc::new(Places { maxima, taken: Mutex::default(), left: Notify::new() }))
    }

    /// Waits for a place of a connection. `None` if there are too many.
    pub(super) async fn place(&self, source: IpAddr) -> Option<Arc<Place>> {
        // Not the network: the pods of a zone may share a /64.
        let (source, places) = (source.to_canonical(), &self.0);
        if !places.lock().enter(source, places.maxima) {
            return None;
        }
        let mut waiting = Waiting { source, places, is_seated: false };
        let seated = timeout(MAX_WAIT, async {
            loop {
                if let Some(seated) = places.seat(source) {
                    return seated;
                }
                // One that is too young to make room will be older then.
                let _ = timeout(UNDISTURBED, places.left.notified()).await;
            }
        });
        let (number, end) = seated.await.ok()?;
        waiting.is_seated = true;
        Some(Arc::new(Place { source, number, end, places: places.clone() }))
    }

    async fn count(&self, stream: TcpStream) -> io::Result<Counted> {
        let place = self.place(stream.peer_addr()?.ip()).await;
        let place = place.ok_or_else(|| io::Error::other("too many connections to the control port"))?;
        let keepalive = TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3);
        SockRef::from(&stream).set_tcp_keepalive(&keepalive)?;
        stream.set_nodelay(true)?;
        let end = Box::pin(place.end.clone().notified_owned());
        Ok(Counted { stream, end, deadline: Some(Box::pin(sleep(MAX_STRANGE))), place })
    }
}

impl<S: Send + 'static> Accept<TcpStream, S> for Connections {
    type Stream = Counted;
    type Service = AddExtension<S, Arc<Place>>;
    type Future = BoxFuture<'static, io::Result<(Counted, Self::Service)>>;

    fn accept(&self, stream: TcpStream, service: S) -> Self::Future {
        let connections = self.clone();
        Box::pin(async move {
            let stream = connections.count(stream).await?;
            let service = Extension(stream.place.clone()).layer(service);
            Ok((stream, service))
        })
    }
}

/// A connection that is counted until it ends.
#[derive(Debug)]
pub(crate) struct Counted {
    stream: TcpStream,
    /// Completes if the connection makes room.
    end: Pin<Box<OwnedNotified>>,
    /// Completes when the connection has been a stranger's for too long; `None` once it is no longer a stranger's.
    deadline: Option<Pin<Box<Sleep>>>,
    place: Arc<Place>,
}

impl Counted {
    /// Returns why the connection ends, if it does.
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Option<&'static str> {
        if self.end.as_mut().poll(cx).is_ready() {
            return Some(
                "the connection makes room for others, because its source has many without a session",
            );
        }
        if self.deadline.as_mut()?.as_mut().poll(cx).is_ready() {
            self.deadline = None;
            return self.place.is_stranger().then_some("the connection has shown no token for too long");
        }
        None
    }
}

impl AsyncRead for Counted {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if let Some(reason) = this.poll_end(cx) {
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::net::TcpListener;

    use super::*;

    fn source(n: u8) -> IpAddr {
        Ipv4Addr::new(10, 0, 0, n).into()
    }

    /// Returns a place that is free now.
    fn place(connections: &Connections, n: u8) -> Option<Arc<Place>> {
        connections.place(source(n)).now_or_never().flatten()
    }

    fn is_ended(place: &Place) -> bool {
        place.end.notified().now_or_never().is_some()
    }

    #[tokio::test]
    async fn strangers_take_only_their_share_of_the_connections() {
        let maxima = Maxima { total: 6, strangers: 3, of_source: 4, strangers_of_source: 2 };
        let connections = Connections::with_maxima(maxima);
        let mut first: Vec<_> = (0..3).filter_map(|_| place(&connections, 1)).collect();
        assert_eq!(first.len(), 2, "of one source");
        for place in &first {
            place.is_sidecar();
            place.is_sidecar();
        }
        first.extend((0..3).filter_map(|_| place(&connections, 1)));
        assert_eq!(first.len(), 4, "sidecars and strangers of one source");
        first.iter().for_each(|place| place.is_sidecar());
        assert!(place(&connections, 1).is_none());
        let others = [2, 3].map(|n| place(&connections, n).unwrap());
        assert!(place(&connections, 4).is_none(), "of sidecars and strangers");
        assert!(!first.iter().chain(&others).any(|place| is_ended(place)));
        drop((first, others));
        let taken = connections.0.lock();
        assert!(taken.all == 0 && taken.strangers == 0 && taken.sources.is_empty());
    }

    #[tokio::test(start_paused = true)]
    async fn the_oldest_stranger_of_the_source_that_has_the_most_makes_room_after_its_time() {
        let maxima = Maxima { total: 100, strangers: 6, of_source: 10, strangers_of_source: 4 };
        let connections = Connections::with_maxima(maxima);
        let sidecar = place(&connections, 1).unwrap();
        sidecar.is_sidecar();
        let many: Vec<_> = (0..4).map(|_| place(&connections, 1).unwrap()).collect();
        let few: Vec<_> = (0..2).map(|_| place(&connections, 2).unwrap()).collect();
        assert!(place(&connections, 3).is_none(), "in a crowd, one node connects before another");
        let waiting = connections.clone();
        let waiting = tokio::spawn(async move { waiting.place(source(3)).await });
        tokio::time::sleep(UNDISTURBED).await;
        let new = [waiting.await.unwrap().unwrap(), place(&connections, 3).unwrap()];
        let ended = |places: &[Arc<Place>]| places.iter().map(|place| is_ended(place)).collect::<Vec<_>>();
        assert_eq!(ended(&many), [true, true, false, false]);
        assert!(place(&connections, 3).is_none(), "all sources have two");
        assert!(!is_ended(&sidecar) && ended(&few) == [false; 2] && ended(&new) == [false; 2]);
        drop(many);
        assert!(place(&connections, 3).is_some());
    }

    #[tokio::test(start_paused = true)]
    async fn in_a_crowd_each_connection_waits_until_another_is_no_longer_a_strangers() {
        let maxima = Maxima { total: 6, strangers: 2, of_source: 4, strangers_of_source: 2 };
        let connections = Connections::with_maxima(maxima);
        let first = [1, 2].map(|n| place(&connections, n).unwrap());
        let wait = |n| {
            let connections = connections.clone();
            tokio::spawn(async move { connections.place(source(n)).await })
        };
        let waiting = [3, 4, 5].map(wait);
        tokio::task::yield_now().await;
        assert_eq!(connections.0.lock().all, 5);
        let [third, fourth, late] = waiting;
        first[0].is_sidecar();
        let third = third.await.unwrap().expect("the first is a sidecar's");
        drop(third);
        let fourth = fourth.await.unwrap().expect("the third has left");
        assert!(late.await.unwrap().is_none(), "nobody leaves in time");
        drop((first, fourth));
        let taken = connections.0.lock();
        assert!(taken.all == 0 && taken.strangers == 0 && taken.sources.is_empty());
    }

    /// Connects to a listener, and counts the connection.
    async fn connect(connections: &Connections, listener: &TcpListener) -> (TcpStream, Counted) {
        let client = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        (client, connections.count(listener.accept().await.unwrap().0).await.unwrap())
    }

    #[tokio::test]
    async fn a_connection_that_makes_room_ends() {
        let connections = Connections::with_maxima(Maxima { strangers: 2, ..MAXIMA });
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_client, mut oldest) = connect(&connections, &listener).await;
        let _another = connect(&connections, &listener).await;
        let reading = tokio::spawn(async move { oldest.read_u8().await.unwrap_err().to_string() });
        tokio::task::yield_now().await;
        tokio::time::pause();
        tokio::time::advance(UNDISTURBED).await;
        let _new = place(&connections, 9).unwrap();
        assert!(reading.await.unwrap().contains("makes room"));
    }

    #[tokio::test]
    async fn only_a_strangers_connection_ends_when_it_sends_nothing() {
        let connections = Connections::new();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (_client, mut stranger) = connect(&connections, &listener).await;
        let (mut client, mut sidecar) = connect(&connections, &listener).await;
        sidecar.place.is_sidecar();
        tokio::time::pause();
        let reason = stranger.read_u8().await.unwrap_err().to_string();
        assert!(reason.contains("shown no token"), "{reason}");
        assert!(timeout(10 * MAX_STRANGE, sidecar.read_u8()).await.is_err(), "it is kept");
        tokio::time::resume();
        client.write_u8(7).await.unwrap();
        assert_eq!(sidecar.read_u8().await.unwrap(), 7);
    }
}
