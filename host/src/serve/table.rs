//! The connections of a port: how many there are, how many of each peer, and how many bytes of requests they hold together. When places
//! run out, those make room whose end does the least harm; when bytes do, those that send slowly, or hold the most.
//!
//! - `exchange`: a request in flight, and what it holds. `strangers`: bounds those that have not shown whose they are, where that is asked.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use slab::Slab;
use tokio::sync::Notify;
use tokio::time::Instant;

use crate::capacity;
use crate::serve::choice::{Candidate, Harm, batch, choose, network};

pub(super) mod exchange;
mod strangers;

/// Interval at which a connection without a place looks for one that others can make.
const RETRY: Duration = Duration::from_millis(100);
/// Time in microseconds after which a request that is not complete is one that is sent slowly.
const SLOW_AFTER: u64 = 1_000_000;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

fn now() -> u64 {
    u64::try_from(START.elapsed().as_micros()).unwrap_or(u64::MAX)
}

/// The maxima of a port, or of several together.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Maxima {
    /// Connections.
    pub connections: usize,
    /// Connections of one peer: of an IPv4 address, or of a /64 of IPv6.
    pub of_peer: usize,
    /// Where a caller must show who it is: the maxima until then. None of those that have makes room, and a peer is an address.
    pub strangers: Option<Strangers>,
    /// Bytes of requests that are not answered, and of answers, together. 4 KiB of each head and of each body are free, of four requests of
    /// a connection at a time, and 16 KiB of what a connection has not made into a request. Each further request counts as 4 KiB more.
    pub bytes: usize,
}

impl Maxima {
    /// Returns the maxima of a port for everybody, of which no peer takes all.
    #[must_use]
    pub fn new(connections: usize, bytes: usize) -> Self {
        Self { connections, of_peer: capacity::of_peer(connections), strangers: None, bytes }
    }
}

/// The maxima of connections that have not shown whose they are. The pods of a node may share an address.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Strangers {
    /// Connections.
    pub connections: usize,
    /// Connections of one address, those that wait included.
    pub of_address: usize,
}

/// The reason why a connection ends for others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(super) enum EndReason {
    /// Another connection needs its place, and it has no request in flight.
    EvictedIdle = 1,
    /// Another connection needs its place, and its requests or answers make no progress.
    EvictedStalled,
    /// The bytes of requests have run out.
    Memory,
    /// Its peer has too many.
    Peer,
}

impl EndReason {
    const ALL: [Self; 4] = [Self::EvictedIdle, Self::EvictedStalled, Self::Memory, Self::Peer];

    fn label(self) -> &'static str {
        match self {
            Self::EvictedIdle => "evicted_idle",
            Self::EvictedStalled => "evicted_stalled",
            Self::Memory => "memory",
            Self::Peer => "peer",
        }
    }
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReasonLabels {
    reason: &'static str,
}

/// The metrics of ports. Clones share them.
#[derive(Debug, Clone, Default)]
pub struct PortMetrics {
    /// Open connections.
    pub connections: Gauge,
    /// Panics that ended a request or a connection.
    pub panics: Counter,
    ended: Family<ReasonLabels, Counter>,
    refused_bytes: Counter,
}

impl PortMetrics {
    /// Creates the metrics, and registers them.
    #[must_use]
    pub fn register(registry: &mut Registry) -> Self {
        let metrics = Self::default();
        for reason in EndReason::ALL {
            let _ = metrics.ended.get_or_create(&ReasonLabels { reason: reason.label() });
        }
        registry.register(
            "port_connections",
            "Open connections of callers, of all ports together",
            metrics.connections.clone(),
        );
        registry.register(
            "port_connections_ended",
            "Connections that ended so that others have room, by the reason: evicted_idle and evicted_stalled for their places, memory for \
             the bytes of their requests, peer for other connections of their peer, also of those that found no place",
            metrics.ended.clone(),
        );
        registry.register(
            "port_requests_without_room",
            "Requests that were refused because the bytes of requests have run out",
            metrics.refused_bytes.clone(),
        );
        registry.register(
            "panics",
            "Requests and connections that ended by a defect",
            metrics.panics.clone(),
        );
        metrics
    }

    /// Returns the same without the number of connections, for a port whose connections are not counted.
    #[must_use]
    pub fn uncounted(&self) -> Self {
        Self { connections: Gauge::default(), ..self.clone() }
    }

    fn ended(&self, reason: EndReason) {
        self.ended.get_or_create(&ReasonLabels { reason: reason.label() }).inc();
    }
}

/// There is no room for the bytes of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many bytes of requests are waiting: send it again later")]
pub struct NoRoom;

/// The state of one connection. Its tasks write it with plain stores; the table reads it when something runs out.
#[derive(Debug)]
pub struct Connection {
    pub(super) table: Arc<Table>,
    /// The address, or the network, that it counts for.
    peer: IpAddr,
    /// Whether it has not shown whose it is, although it must.
    is_stranger: AtomicBool,
    /// Requests whose bodies are not complete, that are answered, and whose answers are sent.
    receiving: AtomicU32,
    answering: AtomicU32,
    sending: AtomicU32,
    had_request: AtomicBool,
    /// Answers that wait for the client to read.
    unread: AtomicU32,
    /// Time at which a request last began, went on or ended.
    since: AtomicU64,
    /// Bytes of its requests, without those that are free.
    bytes: AtomicUsize,
    /// Notified of the first request.
    begun: Notify,
    /// Bytes that were received.
    pub(super) received: AtomicUsize,
    /// Changes whenever something that was received is handed over.
    pub(super) handed_over: AtomicU32,
    /// Whether it still has its place.
    has_place: AtomicBool,
    end: AtomicU8,
    ended: Notify,
    /// Its number in the table.
    index: usize,
}

/// The connections of a port, or of several.
#[derive(Debug)]
pub struct Table {
    pub(super) maxima: Maxima,
    entries: Mutex<Entries>,
    bytes: AtomicUsize,
    left: Notify,
    pub(super) metrics: PortMetrics,
}

#[derive(Debug, Default)]
struct Entries {
    all: Slab<Arc<Connection>>,
    /// Those that have a place, in all and by peer.
    places: usize,
    of_peer: HashMap<IpAddr, OfPeer>,
    /// The strangers that do not wait, the oldest first.
    strangers: Vec<(Instant, Arc<Connection>)>,
}

/// The connections of one peer.
#[derive(Debug, Default, Clone, Copy)]
struct OfPeer {
    places: usize,
    /// Its strangers, and those of them that do not wait.
    strangers: usize,
    seated: usize,
}

impl Entries {
    fn take_place(&mut self, connection: &Connection) {
        self.places += 1;
        self.of_peer.entry(connection.peer).or_default().places += 1;
        connection.has_place.store(true, Relaxed);
    }

    fn give_place(&mut self, connection: &Connection) {
        if !connection.has_place.swap(false, Relaxed) {
            return;
        }
        self.places -= 1;
        if let Some(of_peer) = self.of_peer.get_mut(&connection.peer) {
            of_peer.places -= 1;
            if of_peer.places == 0 {
                self.of_peer.remove(&connection.peer);
            }
        }
    }

    /// Makes up to `batch` connections give their places, of one peer or of all. Reports whether any has.
    fn evict(&mut self, of: Option<IpAddr>, even_new: bool, batch: usize, metrics: &PortMetrics) -> bool {
        let now = now();
        let with_place = || self.all.iter().filter(|(_, one)| one.has_place.load(Relaxed));
        let candidates = with_place()
            .filter(|(_, one)| of.is_none_or(|of| one.peer == of))
            .filter_map(|(index, one)| one.candidate(index, now, even_new));
        let chosen = choose(candidates.collect(), with_place().map(|(_, one)| one.peer), batch);
        let mut has_evicted = false;
        for index in chosen {
            let one = self.all[index].clone();
            let reason = match (of, one.is_busy()) {
                (_, true) => EndReason::EvictedStalled,
                (Some(_), false) => EndReason::Peer,
                (None, false) => EndReason::EvictedIdle,
            };
            if one.end(reason) {
                metrics.ended(reason);
                self.give_place(&one);
                has_evicted = true;
            }
        }
        has_evicted
    }

    /// Ends the connection whose requests occupy the most bytes: of those that send slowly, if there are any, and of the peer that has
    /// the most. Returns the number of bytes, or `None` if it is `of` itself, or there is none.
    fn shed(&self, of: &Arc<Connection>) -> Option<usize> {
        let before = now().saturating_sub(SLOW_AFTER);
        let mut by_peer = HashMap::<(bool, IpAddr), usize>::new();
        let holding = || {
            let incomplete =
                self.all.iter().filter(|(_, one)| one.end.load(Relaxed) == 0 && one.holds_incomplete());
            incomplete.map(|(_, one)| {
                // One without a request may have sent nothing but frames that control its connection.
                let is_slow = one.is_busy() && one.since.load(Relaxed) <= before;
                ((is_slow, one.peer), one)
            })
        };
        for (key, one) in holding() {
            *by_peer.entry(key).or_default() += one.bytes.load(Relaxed);
        }
        let (first, _) = by_peer.into_iter().max_by_key(|((is_slow, _), bytes)| (*is_slow, *bytes))?;
        let heaviest = holding().filter(|(key, _)| *key == first).map(|(_, one)| one);
        let heaviest = heaviest.max_by_key(|one| one.bytes.load(Relaxed))?;
        (!Arc::ptr_eq(heaviest, of) && heaviest.end(EndReason::Memory))
            .then(|| heaviest.bytes.swap(0, Relaxed))
    }
}

impl Table {
    /// Creates the table of a port, or of several that share it.
    #[must_use]
    pub fn new(maxima: Maxima, metrics: PortMetrics) -> Arc<Self> {
        let entries = Mutex::default();
        Arc::new(Self { maxima, entries, bytes: AtomicUsize::new(0), left: Notify::new(), metrics })
    }

    fn lock(&self) -> MutexGuard<'_, Entries> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a place. If there is none, others make room. `None` if the peer has as many as it may have, and all of them are busy.
    ///
    /// Among strangers it does not wait: `Connection::is_seated` does.
    pub async fn place(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        if let Some(maxima) = self.maxima.strangers {
            return self.enter(peer.to_canonical(), maxima);
        }
        let network = network(peer);
        loop {
            {
                let mut entries = self.lock();
                let own = entries.of_peer.get(&network).map_or(0, |own| own.places);
                // Of its own, a peer may lose those that have just begun.
                let mut evict_own =
                    |even_new, batch| entries.evict(Some(network), even_new, batch, &self.metrics);
                if own >= self.maxima.of_peer
                    && !evict_own(false, batch(self.maxima.of_peer))
                    && !evict_own(true, 1)
                {
                    self.metrics.ended(EndReason::Peer);
                    return None;
                }
                if entries.places < self.maxima.connections
                    || entries.evict(None, false, batch(self.maxima.connections), &self.metrics)
                {
                    return Some(self.add(&mut entries, network));
                }
            }
            let _ = tokio::time::timeout(RETRY, self.left.notified()).await;
        }
    }

    fn add(self: &Arc<Self>, entries: &mut Entries, peer: IpAddr) -> Place {
        let slot = entries.all.vacant_entry();
        let connection = Arc::new(Connection {
            table: self.clone(),
            peer,
            is_stranger: AtomicBool::new(false),
            receiving: AtomicU32::new(0),
            answering: AtomicU32::new(0),
            sending: AtomicU32::new(0),
            had_request: AtomicBool::new(false),
            unread: AtomicU32::new(0),
            since: AtomicU64::new(now()),
            bytes: AtomicUsize::new(0),
            begun: Notify::new(),
            received: AtomicUsize::new(0),
            handed_over: AtomicU32::new(0),
            has_place: AtomicBool::new(false),
            end: AtomicU8::new(0),
            ended: Notify::new(),
            index: slot.key(),
        });
        slot.insert(connection.clone());
        entries.take_place(&connection);
        self.metrics.connections.inc();
        Place(connection)
    }
}

/// The right to be one of the connections. It ends with the connection.
#[derive(Debug)]
pub struct Place(pub Arc<Connection>);

impl Drop for Place {
    fn drop(&mut self) {
        let table = &self.0.table;
        let mut entries = table.lock();
        // The others leave no place that one waits for.
        let leaves_place = entries.admit(&self.0) || table.maxima.strangers.is_none();
        entries.give_place(&self.0);
        entries.all.remove(self.0.index);
        drop(entries);
        table.metrics.connections.dec();
        if leaves_place {
            table.left.notify_one();
        }
    }
}

impl Connection {
    /// Reports whether a request is in flight.
    fn is_busy(&self) -> bool {
        [&self.receiving, &self.answering, &self.sending].iter().any(|count| count.load(Relaxed) > 0)
    }

    /// Waits for the first request.
    pub(super) async fn begun(&self) {
        while !self.had_request.load(Relaxed) {
            self.begun.notified().await;
        }
    }

    /// Reports whether nothing of an answer has been read for so long.
    pub(super) fn is_unread_for(&self, time: Duration) -> bool {
        let before = u128::from(now()).saturating_sub(time.as_micros());
        self.unread.load(Relaxed) > 0 && u128::from(self.since.load(Relaxed)) <= before
    }

    /// Reports whether it holds bytes of what is not complete. What is complete is answered soon.
    fn holds_incomplete(&self) -> bool {
        self.bytes.load(Relaxed) > 0
            && (self.receiving.load(Relaxed) > 0 || self.answering.load(Relaxed) == 0)
    }

    /// Returns the connection as one that can make room, if it can.
    fn candidate(&self, index: usize, now: u64, even_new: bool) -> Option<Candidate> {
        if self.end.load(Relaxed) != 0 || self.answering.load(Relaxed) > 0 {
            return None;
        }
        let harm = if self.receiving.load(Relaxed) > 0 {
            Harm::Stalled
        } else if self.sending.load(Relaxed) > 0 {
            Harm::Quiet
        } else if self.had_request.load(Relaxed) {
            Harm::Idle
        } else {
            Harm::New
        };
        let after = if even_new && harm <= Harm::Idle { 0 } else { harm.makes_room_after() };
        let since = self.since.load(Relaxed);
        (now.saturating_sub(since) >= after).then_some(Candidate { index, peer: self.peer, harm, since })
    }

    fn end(&self, reason: EndReason) -> bool {
        let first = self.end.compare_exchange(0, reason as u8, Relaxed, Relaxed).is_ok();
        if first {
            self.ended.notify_one();
        }
        first
    }

    /// Waits until the connection must end for others. A request that has arrived in the meantime spares an idle one.
    pub(super) async fn ended(&self) {
        loop {
            self.ended.notified().await;
            let end = self.end.load(Relaxed);
            let is_idle = end == EndReason::EvictedIdle as u8 || end == EndReason::Peer as u8;
            if !(is_idle && self.is_busy()) {
                return;
            }
            self.end.store(0, Relaxed);
            self.table.lock().take_place(self);
        }
    }

    /// Takes room for bytes.
    pub(super) fn take(self: &Arc<Self>, bytes: usize) -> Result<(), NoRoom> {
        let table = &self.table;
        let mut used = table.bytes.fetch_add(bytes, Relaxed) + bytes;
        self.bytes.fetch_add(bytes, Relaxed);
        while used > table.maxima.bytes {
            let Some(freed) = table.lock().shed(self) else {
                self.release(bytes);
                table.metrics.refused_bytes.inc();
                return Err(NoRoom);
            };
            table.metrics.ended(EndReason::Memory);
            used = table.bytes.fetch_sub(freed, Relaxed) - freed;
        }
        Ok(())
    }

    /// Gives room back, unless the connection has given way already.
    pub(super) fn release(&self, bytes: usize) {
        if bytes > 0 {
            let before = self.bytes.fetch_update(Relaxed, Relaxed, |held| Some(held.saturating_sub(bytes)));
            let held = before.unwrap_or_else(|held| held);
            self.table.bytes.fetch_sub(held.min(bytes), Relaxed);
        }
    }
}

#[cfg(test)]
mod tests;
