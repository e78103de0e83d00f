//! All client connections of a sidecar: at most a maximum of them, and which of them make room for others.
//!
//! - [`activity`]: what one connection does. [`exchange`]: its requests and their bodies.
//!
//! The table is locked when a connection begins or ends, when connections or memory run out, and once a second;
//! never for a request.

use std::cmp::Reverse;
use std::net::IpAddr;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use slab::Slab;
use sluice_host::serve::choice::{Candidate, Harm, MAX_BATCH, batch, choose};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::clock;
use crate::http2::CONNECTION_WINDOW;
use crate::inbound::table::activity::{Activity, REQUEST_WEIGHT, Stage};
use crate::memory::BUDGET;
use crate::metrics::ended::EndReason;
use crate::metrics::ended::EndedStreams;

pub(crate) mod activity;
pub(crate) mod exchange;

/// Interval at which connections are checked for timeouts.
const SWEEP: Duration = Duration::from_secs(1);
/// Time after which more connections are evicted if none has ended.
const RETRY: Duration = Duration::from_millis(100);
/// Attempts after which the sidecar is saturated, although connections were about to end.
const PATIENT_ATTEMPTS: u32 = 10;
/// Bytes that a client that is waited for moves between two checks unless it is slow.
const MIN_RATE: u64 = 4 << 10;
/// Fewer bytes are no progress: a client that sends a byte now and then occupies a connection for ever.
const MIN_PROGRESS: u64 = 256;
/// Estimated memory of a connection without requests, and of responses that the client does not read, in bytes.
const CONNECTION_WEIGHT: u64 = 16 << 10;
const UNREAD_WEIGHT: u64 = 64 << 10;
/// Connections that occupy less are equal when memory runs out.
const LIGHT: u64 = 64 << 10;

/// The order in which connections are ended when memory runs out: the heaviest first, and of those of about the same
/// weight the ones whose end does the least harm.
#[derive(Debug, PartialEq, Eq, PartialOrd, Ord)]
struct Burden {
    magnitude: Reverse<u32>,
    works: bool,
    harm: Option<Harm>,
    since: u64,
    index: usize,
}

/// Times after which connections end. `None` never ends them.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Timeouts {
    /// Time in which the client must send or read a part of a body.
    pub(crate) body: Option<Duration>,
    /// Time that an HTTP/2 connection may be without requests.
    pub(crate) http2_idle: Option<Duration>,
    /// Time that an upgraded connection may be silent.
    pub(crate) upgrade_idle: Option<Duration>,
}

/// The client connections of all workers.
#[derive(Debug)]
pub(crate) struct ConnectionTable {
    max: usize,
    permits: Arc<Semaphore>,
    entries: Mutex<Slab<Entry>>,
    /// Listeners that wait although no connection could be evicted.
    saturated: AtomicUsize,
    ended_streams: EndedStreams,
}

#[derive(Debug)]
struct Entry {
    activity: Arc<Activity>,
    /// Bytes that had moved at `progress`.
    moved: u64,
    /// Time of the last progress, in microseconds.
    progress: u64,
    /// Bytes that had moved at the last sweep, and the time at which any byte was seen to have moved.
    heard: u64,
    heard_at: u64,
    /// Time of the last sweep at which [`MIN_RATE`] was reached, or the client was not waited for.
    fast_at: u64,
}

/// The right to be one of the connections. It ends with the connection.
#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) activity: Arc<Activity>,
    /// Its number in the table.
    index: usize,
    table: Arc<ConnectionTable>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Place {
    fn drop(&mut self) {
        self.activity.stalled().close();
        self.table.lock().remove(self.index);
    }
}

impl ConnectionTable {
    pub(crate) fn new(max: usize, ended_streams: EndedStreams) -> Arc<Self> {
        let max = max.clamp(1, Semaphore::MAX_PERMITS);
        Arc::new(Self {
            max,
            permits: Arc::new(Semaphore::new(max)),
            entries: Mutex::default(),
            saturated: AtomicUsize::new(0),
            ended_streams,
        })
    }

    /// Waits for a place. If there is none, other connections are evicted. Returns `None` only at the end of the
    /// process.
    pub(crate) async fn place(self: &Arc<Self>, peer: IpAddr) -> Option<Place> {
        let (mut saturated, mut attempts) = (None, 0);
        loop {
            if let Ok(permit) = self.permits.clone().try_acquire_owned() {
                return Some(self.add(peer, permit));
            }
            attempts += 1;
            if (!self.make_room(clock::now()) || attempts > PATIENT_ATTEMPTS) && saturated.is_none() {
                saturated = Some(Saturated::new(self));
            }
            // Waiting in line lets no other worker take the place that becomes free.
            if let Ok(permit) = tokio::time::timeout(RETRY, self.permits.clone().acquire_owned()).await {
                return Some(self.add(peer, permit.ok()?));
            }
        }
    }

    /// Reports whether all places are taken by requests in flight.
    pub(crate) fn is_saturated(&self) -> bool {
        self.saturated.load(Ordering::Relaxed) > 0
    }

    fn lock(&self) -> MutexGuard<'_, Slab<Entry>> {
        self.entries.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn add(self: &Arc<Self>, peer: IpAddr, permit: OwnedSemaphorePermit) -> Place {
        BUDGET.read(CONNECTION_WEIGHT as usize);
        let activity = Activity::new(peer);
        let now = clock::now();
        let index = self.lock().insert(Entry {
            activity: activity.clone(),
            moved: 0,
            progress: now,
            heard: 0,
            heard_at: now,
            fast_at: now,
        });
        Place { activity, index, table: self.clone(), _permit: permit }
    }

    /// Evicts connections so that others have room. Returns whether there are any, or will be soon.
    fn make_room(&self, now: u64) -> bool {
        let entries = self.lock();
        let mut candidates = Vec::new();
        let mut later = false;
        for (index, entry) in entries.iter() {
            match entry.candidate(index, now) {
                Some((candidate, true)) => candidates.push(candidate),
                Some((_, false)) => later = true,
                None => later |= entry.activity.is_ending(),
            }
        }
        let peers = entries.iter().map(|(_, entry)| entry.activity.peer);
        let mut evicted = false;
        for index in choose(candidates, peers, batch(self.max)) {
            let activity = &entries[index].activity;
            let reason = if activity.is_busy() { EndReason::EvictedStalled } else { EndReason::EvictedIdle };
            evicted |= activity.end(reason);
        }
        evicted || later
    }

    /// Reports whether connections are about to end.
    pub(crate) fn has_ending(&self) -> bool {
        self.lock().iter().any(|(_, entry)| entry.activity.is_ending())
    }

    /// Ends the streams that hold the most memory because nobody reads them, until `bytes` should be free. Returns the number of bytes.
    fn shed(&self, bytes: u64) -> u64 {
        let entries = self.lock();
        let running = entries.iter().filter(|(_, entry)| !entry.activity.is_ending());
        let mut largest: Vec<_> = running
            .flat_map(|(index, entry)| {
                entry.activity.stalled().held().into_iter().map(move |(stream, bytes)| (bytes, index, stream))
            })
            .collect();
        largest.sort_unstable_by_key(|&(bytes, ..)| Reverse(bytes));
        let (mut freed, mut ended) = (0, 0);
        for (held, index, stream) in largest {
            if freed >= bytes {
                break;
            }
            if entries[index].activity.stalled().shed(stream) {
                freed += held;
                ended += 1;
            }
        }
        self.ended_streams.ended(EndReason::Memory, ended);
        freed
    }

    /// Makes room for `bytes`: ends the streams that nobody reads, and if there are none, whole connections. Returns the estimated
    /// number of bytes that become free.
    pub(crate) fn free(&self, bytes: u64) -> u64 {
        match self.shed(bytes) {
            0 => self.evict(bytes),
            freed => freed,
        }
    }

    /// Evicts the connections that occupy the most memory, until `bytes` should be free. Returns the estimated
    /// number of bytes, or zero if there are no such connections. Spares those that occupy little and make progress: they are not
    /// the reason, and their number is bounded.
    fn evict(&self, bytes: u64) -> u64 {
        let entries = self.lock();
        let now = clock::now();
        let running = entries.iter().filter(|(_, entry)| {
            !entry.activity.is_ending() && (entry.weight() >= LIGHT || entry.can_go(now))
        });
        let mut heaviest: Vec<_> = running.map(|(index, entry)| entry.burden(index, now)).collect();
        heaviest.sort_unstable();
        let mut freed = 0;
        for Burden { index, .. } in heaviest.into_iter().take(MAX_BATCH) {
            if entries[index].activity.end(EndReason::Memory) {
                freed += entries[index].weight();
            }
            if freed >= bytes {
                break;
            }
        }
        freed
    }

    /// Ends connections whose timeouts have passed. Never returns.
    pub(crate) async fn sweep(self: Arc<Self>, timeouts: Timeouts) {
        loop {
            tokio::time::sleep(SWEEP).await;
            self.sweep_at(clock::now(), timeouts);
        }
    }

    fn sweep_at(&self, now: u64, timeouts: Timeouts) {
        for (_, entry) in self.lock().iter_mut() {
            entry.note_progress(now);
            entry.activity.next_second();
            if let Some(timeout) = timeouts.body
                && let Some(before) = now.checked_sub(u64::try_from(timeout.as_micros()).unwrap_or(u64::MAX))
            {
                let ended = entry.activity.stalled().shed_before(before);
                self.ended_streams.ended(EndReason::BodyTimeout, ended);
                if ended > 0 {
                    // What does not depend on these streams goes on.
                    continue;
                }
            }
            if let Some(reason) = entry.expired(now, timeouts) {
                entry.activity.end(reason);
            }
        }
    }
}

impl Entry {
    fn note_progress(&mut self, now: u64) {
        let moved = self.activity.moved();
        if moved.wrapping_sub(self.moved) >= MIN_PROGRESS {
            (self.moved, self.progress) = (moved, now);
        }
        if moved.wrapping_sub(self.heard) >= MIN_RATE || !self.activity.waits_for_client(false) {
            self.fast_at = now;
        }
        if moved != self.heard {
            (self.heard, self.heard_at) = (moved, now);
        }
    }

    /// Returns the time since when the connection makes no progress.
    fn quiet_since(&self) -> u64 {
        self.progress.max(self.activity.idle_since())
    }

    fn expired(&self, now: u64, timeouts: Timeouts) -> Option<EndReason> {
        let passed = |since: u64, timeout: Option<Duration>| {
            timeout.is_some_and(|timeout| u128::from(now.saturating_sub(since)) >= timeout.as_micros())
        };
        let activity = &self.activity;
        match activity.stage() {
            Stage::Upgraded => {
                // A ping is a sign of life.
                let silent_since = self.heard_at.max(activity.idle_since());
                passed(silent_since, timeouts.upgrade_idle).then_some(EndReason::UpgradeTimeout)
            }
            Stage::Http1 | Stage::Http2 if activity.waits_for_client(false) => {
                passed(self.quiet_since(), timeouts.body).then_some(EndReason::BodyTimeout)
            }
            Stage::Http2 if !activity.is_busy() => {
                passed(activity.idle_since(), timeouts.http2_idle).then_some(EndReason::IdleTimeout)
            }
            Stage::Http1 | Stage::Http2 => None,
        }
    }

    /// Returns the connection as one that can make room, and whether it can already, or `None` if it works for its
    /// client.
    fn candidate(&self, index: usize, now: u64) -> Option<(Candidate, bool)> {
        let activity = &self.activity;
        if activity.is_ending() {
            return None;
        }
        let has_moved = activity.moved().wrapping_sub(self.moved) >= MIN_PROGRESS;
        let quiet = if has_moved { 0 } else { now.saturating_sub(self.quiet_since()) };
        let (harm, since) = if activity.stage() == Stage::Upgraded {
            (Harm::Quiet, self.quiet_since())
        } else if !activity.is_busy() {
            (if activity.had_request() { Harm::Idle } else { Harm::New }, activity.idle_since())
        } else if activity.waits_for_client(false) && quiet >= Harm::Stalled.makes_room_after() {
            (Harm::Stalled, self.quiet_since())
        } else if activity.waits_for_client(false) {
            (Harm::Slow, self.fast_at.max(activity.idle_since()))
        } else if activity.waits_for_client(true) {
            (Harm::Quiet, self.quiet_since())
        } else {
            return None;
        };
        let passed = if harm == Harm::Quiet { quiet } else { now.saturating_sub(since) };
        let can_go = passed >= harm.makes_room_after();
        Some((Candidate { index, peer: activity.peer, harm, since }, can_go))
    }

    /// Reports whether the connection can make room already.
    fn can_go(&self, now: u64) -> bool {
        self.candidate(0, now).is_some_and(|(_, can_go)| can_go)
    }

    fn burden(&self, index: usize, now: u64) -> Burden {
        let magnitude = (self.weight() / LIGHT).checked_ilog2().map_or(0, |magnitude| magnitude + 1);
        let harm = self.candidate(index, now).map(|(candidate, _)| candidate.harm);
        Burden {
            magnitude: Reverse(magnitude),
            works: harm.is_none(),
            harm,
            since: self.activity.idle_since(),
            index,
        }
    }

    /// Estimates the memory of the connection.
    fn weight(&self) -> u64 {
        let activity = &self.activity;
        let unread_by_client = if activity.waits_for_client(true) { UNREAD_WEIGHT } else { 0 };
        // What was read is only an estimate, but the windows and buffers bound it.
        let unread = match activity.stage() {
            Stage::Http1 | Stage::Http2 => activity.unread().min(u64::from(CONNECTION_WINDOW)),
            Stage::Upgraded => 0,
        };
        CONNECTION_WEIGHT + u64::from(activity.exchanges()) * REQUEST_WEIGHT + unread + unread_by_client
    }
}

/// Counts a listener that waits in vain.
struct Saturated<'a>(&'a AtomicUsize);

impl<'a> Saturated<'a> {
    fn new(table: &'a ConnectionTable) -> Self {
        table.saturated.fetch_add(1, Ordering::Relaxed);
        Self(&table.saturated)
    }
}

impl Drop for Saturated<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests;
