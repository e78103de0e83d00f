//! Counters in this process. A check locks the shards of its counters in their order, so that it is atomic over several
//! of them and cannot deadlock. No lock is held across an await: there is none here.
//!
//! In the order in which a check meets them:
//! - [`prepared`]: what is known of a limit beforehand.
//! - [`hot`]: the counter of a shard that is asked for again and again, outside of the lock.
//! - [`shard`]: a part of the keys, behind one lock.
//! - [`table`]: where a key's entry is; [`entry`]: what is in it.
//! - [`window`], [`bucket`]: the checks that most are, on the entry itself. All others are [`decide`]'s.
//! - [`overflow`]: several counters of a check that have become one.
//!
//! Memory is bounded. Now and then a check looks at some places of its shard and drops what has expired; beyond `max_keys`
//! new keys of a limit share one overflow counter, and keys already known keep theirs.

mod bucket;
mod entry;
mod hot;
mod overflow;
mod prepared;
mod shard;
mod table;
mod window;

#[cfg(test)]
mod differential;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_limiter::Decision;
use smallvec::{SmallVec, smallvec};

use self::bucket::Bucket;
use self::entry::{Entry, Id, Layout};
use self::hot::Hot;
use self::overflow::Shared;
pub(crate) use self::prepared::Prepared;
use self::shard::{Held, Shard};
use self::table::SHARD_BITS;
use self::window::Window;
use crate::check::{CheckResponse, Counter, Records, Settlement, decide, settle};
use crate::clock::Clock;

const SHARDS: usize = 1 << SHARD_BITS;
/// The key of the counter that new keys of a limit share when there is no room for them.
const OVERFLOW: u128 = 0;

/// The memory store.
pub struct MemoryStore {
    shards: Box<[Line; SHARDS]>,
    /// Of each shard. It is read more often than written, so it stands apart from the locks, which every check writes.
    hot: Box<[Hot; SHARDS]>,
    clock: Clock,
    max_keys: usize,
    /// How many are held.
    keys: AtomicUsize,
    /// How many shards have been swept for others.
    swept: AtomicUsize,
}

/// A shard in lines of memory of its own, so that two processors do not take them from one another.
#[repr(align(128))]
struct Line(Mutex<Shard>);

impl MemoryStore {
    /// A store of at most `max_keys` keys (overflow counters come on top).
    #[must_use]
    pub fn new(max_keys: usize, clock: Clock) -> Self {
        // Whoever asks first shall not wait for the clock.
        let _ = clock.now();
        Self {
            shards: Box::new(std::array::from_fn(|number| Line(Mutex::new(Shard::new(number))))),
            hot: Box::new(std::array::from_fn(|_| Hot::default())),
            max_keys,
            keys: AtomicUsize::new(0),
            swept: AtomicUsize::new(0),
            clock,
        }
    }

    /// Decides a check now.
    #[must_use]
    #[inline]
    pub fn check(&self, check: &[Counter]) -> CheckResponse {
        self.check_at(check, self.clock.now())
    }

    /// Decides a check at an instant that the caller has just read from a clock: microseconds since the Unix epoch.
    #[must_use]
    #[inline]
    pub fn check_at(&self, check: &[Counter], now: u64) -> CheckResponse {
        if let [counter] = check {
            let prepared = &counter.limit.prepared;
            if let Some(window) = &prepared.window {
                let id = prepared.id(counter.key.0);
                if self.hot[shard_of(id)].may_be(id) {
                    return self.check_hot(counter, window, now);
                }
                return self.check_window(counter, window, now);
            }
            if let Some(bucket) = &prepared.bucket
                && counter.cost == 1
            {
                return self.check_bucket(counter, bucket, now);
            }
        }
        self.check_any(check, now)
    }

    /// Corrects a charge. A counter that is not known any more stays unknown: then its limit's overflow counter, which
    /// may have been charged, takes what is more.
    pub fn settle(&self, settlement: &Settlement) {
        let now = self.clock.now();
        if !self.settle_key_at(settlement, settlement.key.0, now) && settlement.delta > 0 {
            self.settle_key_at(settlement, OVERFLOW, now);
        }
    }

    /// How many keys are held.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// A check of one counter of a plain window that may be asked for outside of its shard's lock. As in
    /// [`Self::check_window`], here is only what most are.
    #[inline(never)]
    fn check_hot(&self, counter: &Counter, window: &Window, now: u64) -> CheckResponse {
        let id = window.tagged(counter.limit.prepared.id(counter.key.0));
        match self.hot[shard_of(id)].check_plain(id, window, counter.cost, now) {
            Some(verdict) => window.answer(verdict, now),
            None => self.check_hot_further(counter, window, now),
        }
    }

    /// The same, whatever it is.
    #[inline(never)]
    fn check_hot_further(&self, counter: &Counter, window: &Window, now: u64) -> CheckResponse {
        let id = window.tagged(counter.limit.prepared.id(counter.key.0));
        match self.hot[shard_of(id)].check(id, window, counter.cost, now) {
            Some(verdict) => window.answer(verdict, now),
            None => self.check_window(counter, window, now),
        }
    }

    /// A check of one counter of a plain window. Here is only what most are, in as few steps as can be: while the entry
    /// comes from memory, a processor goes on with the checks after this one as far as it can hold all steps in between.
    #[inline(never)]
    fn check_window(&self, counter: &Counter, window: &Window, now: u64) -> CheckResponse {
        let id = window.tagged(counter.limit.prepared.id(counter.key.0));
        let Ok(mut shard) = self.shards[shard_of(id)].0.try_lock() else {
            let shard = self.lock_around(shard_of(id));
            return self.check_further(shard, counter, window, now);
        };
        if !self.hot[shard_of(id)].may_be(id)
            && shard.is_quiet(id)
            && let Some(entry) = shard.table.find(id)
            && let Some(spent) = window.spent(entry, now)
            && let Some((current, previous)) = entry.narrow()
            && let Some(left) = window.left(current, previous, spent)
            && counter.cost.wrapping_sub(1) < left
        {
            entry.charge(counter.cost);
            shard.note(id);
            drop(shard);
            return window.answer(window.admitted(left - counter.cost, spent), now);
        }
        self.check_further(shard, counter, window, now)
    }

    /// The same, whatever it is.
    #[inline(never)]
    fn check_further(
        &self,
        mut shard: MutexGuard<'_, Shard>,
        counter: &Counter,
        window: &Window,
        now: u64,
    ) -> CheckResponse {
        let id = window.tagged(counter.limit.prepared.id(counter.key.0));
        let hot = &self.hot[shard_of(id)];
        if hot.may_be(id) && hot.is_live() {
            shard.cool(hot);
            // Who is asked for there does not tick.
            shard.due();
        }
        let often = shard.is_often(id);
        if !shard.tick()
            && let Some(entry) = shard.table.find(id)
            && let Some(spent) = window.spent(entry, now)
            && let Some((current, previous)) = entry.narrow()
        {
            let verdict = window.decide(current, previous, spent, counter.cost);
            if verdict.admitted {
                entry.charge(counter.cost);
            }
            if often && !hot.is_live() {
                hot.put(entry, window, spent);
            }
            drop(shard);
            return window.answer(verdict, now);
        }
        drop(shard);
        self.check_any(std::slice::from_ref(counter), now)
    }

    /// A check of one of a bucket.
    #[inline(never)]
    fn check_bucket(&self, counter: &Counter, bucket: &Bucket, now: u64) -> CheckResponse {
        let id = bucket.tagged(counter.limit.prepared.id(counter.key.0));
        let mut shard = self.lock_around(shard_of(id));
        if !shard.tick()
            && let Some(entry) = shard.table.find(id)
            && let Some(verdict) = bucket.check(entry, now)
        {
            drop(shard);
            return bucket.answer(verdict, now);
        }
        drop(shard);
        self.check_any(std::slice::from_ref(counter), now)
    }

    #[inline(never)]
    fn check_any(&self, check: &[Counter], now: u64) -> CheckResponse {
        if let [counter] = check
            && let Some(layout) = &counter.limit.prepared.layout
            && let Some(decision) = self.check_one(counter, layout, now)
        {
            return CheckResponse::of_one(decision, now);
        }
        self.check_all(check, now)
    }

    /// A check of one counter with one rate whose record stands in an entry. `None`, and nothing changed, if it does not, or
    /// if the key is new and there is no room for it.
    fn check_one(&self, counter: &Counter, layout: &Layout, now: u64) -> Option<Decision> {
        let Counter { limit, key, cost } = counter;
        let id = limit.prepared.id(key.0);
        let mut shard = self.lock(shard_of(id));
        self.sweep(&mut shard, now);
        let found = shard.table.seek(id);
        let stored = match found {
            Ok(at) => Some(shard.table.get(at).filter(|entry| entry.id == id.tagged(layout))?.unpack(layout)),
            Err(_) => None,
        };
        let rate = limit.rates.first()?;
        let (record, at) = rate.roll(stored, now + rate.phase(key.0));
        let room = rate.has_room(&record, at, *cost);
        let record =
            if room { rate.charge(record, at, *cost) } else { rate.charge_denied(record, at, *cost) };
        let decision = rate.decision(&record, at, *cost, room, room);
        match found {
            Ok(at) => shard.set(id, at, layout, record),
            // Denials count for logs only, which do not stand in an entry.
            Err(_) if !room => {}
            Err(at) => {
                let entry = Entry::pack(id, layout, &record)?;
                if !self.reserve() {
                    return None;
                }
                shard.insert(id, at, entry);
            }
        }
        Some(decision)
    }

    /// Any check.
    fn check_all(&self, check: &[Counter], now: u64) -> CheckResponse {
        let mut ids: SmallVec<[Id; 4]> =
            check.iter().map(|counter| counter.limit.prepared.id(counter.key.0)).collect();
        let mut overflown: SmallVec<[bool; 4]> = smallvec![false; ids.len()];
        loop {
            let mut locked = self.lock_all(&ids);
            for (_, shard) in &mut locked {
                self.sweep(shard, now);
            }
            let (mut reserved, mut full) = (0, false);
            for ((id, overflown), counter) in ids.iter_mut().zip(&mut overflown).zip(check) {
                if *overflown || shard(&mut locked, *id).is_none_or(|shard| shard.table.seek(*id).is_ok()) {
                    continue;
                }
                if self.reserve() {
                    reserved += 1;
                } else {
                    (full, *overflown, *id) = (true, true, counter.limit.prepared.id(OVERFLOW));
                }
            }
            if full {
                // The overflow counter may live in a shard that is not locked: begin again with all of them.
                self.keys.fetch_sub(reserved, Ordering::Relaxed);
                continue;
            }
            let (answer, new) = match Shared::of(check, &ids) {
                None => decide_locked(&mut locked, check, &ids, now),
                Some(shared) => {
                    let (answer, new) = decide_locked(&mut locked, &shared.check, &shared.ids, now);
                    (shared.answer(&answer), new)
                }
            };
            self.keys.fetch_add(new, Ordering::Relaxed);
            self.keys.fetch_sub(reserved, Ordering::Relaxed);
            return answer;
        }
    }

    /// Corrects a counter; false if it is not known.
    fn settle_key_at(&self, settlement: &Settlement, key: u128, now: u64) -> bool {
        let limit = &settlement.limit;
        let id = limit.prepared.id(key);
        let mut shard = self.lock(shard_of(id));
        let (mut records, held) = shard.take(id, limit);
        if held.known {
            settle(settlement, &mut records, now);
            shard.put(id, limit, records, held, now);
            return true;
        }
        false
    }

    /// Drops some of what has expired of a shard, if it is time; and of another one, which may not be asked for any more.
    fn sweep(&self, shard: &mut Shard, now: u64) {
        if !shard.tick() {
            return;
        }
        let mut gone = shard.sweep(now);
        let next = self.swept.fetch_add(1, Ordering::Relaxed) % SHARDS;
        if let Ok(mut other) = self.shards[next].0.try_lock() {
            other.cool(&self.hot[next]);
            gone += other.sweep(now);
        }
        if gone > 0 {
            self.keys.fetch_sub(gone, Ordering::Relaxed);
        }
    }

    /// Room for one more key.
    fn reserve(&self) -> bool {
        let room = self.keys.fetch_add(1, Ordering::Relaxed) < self.max_keys;
        if !room {
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        room
    }

    /// A shard with all of its counts.
    #[inline]
    fn lock(&self, number: usize) -> MutexGuard<'_, Shard> {
        let mut shard = self.lock_around(number);
        shard.cool(&self.hot[number]);
        shard
    }

    /// A shard, but for the counter that may be [`hot`].
    #[inline]
    fn lock_around(&self, number: usize) -> MutexGuard<'_, Shard> {
        // A shard is consistent between any two statements that can panic.
        self.shards[number].0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The shards of all of these, each once, in their order.
    fn lock_all(&self, ids: &[Id]) -> Locked<'_> {
        let mut order: SmallVec<[usize; 4]> = ids.iter().map(|&id| shard_of(id)).collect();
        order.sort_unstable();
        order.dedup();
        order.into_iter().map(|shard| (shard, self.lock(shard))).collect()
    }
}

/// Decides a check by the counters with these ids, whose shards are locked; also tells how many of them are new.
fn decide_locked(locked: &mut Locked<'_>, check: &[Counter], ids: &[Id], now: u64) -> (CheckResponse, usize) {
    let held = ids.iter().zip(check).map(|(&id, counter)| {
        shard(locked, id).map(|shard| shard.take(id, &counter.limit)).unwrap_or_default()
    });
    let (mut records, held): (SmallVec<[Records; 4]>, SmallVec<[Held; 4]>) = held.unzip();
    for (records, held) in records.iter_mut().zip(&held) {
        // What edits have left behind proves what their successors begin with.
        records.extend(held.others().iter().cloned());
    }
    let answer = decide(check, &mut records, now);
    let mut new = 0;
    for (((&id, counter), records), held) in ids.iter().zip(check).zip(records).zip(held) {
        // Who is denied and not known stays unknown.
        if (answer.admitted || held.known || counter.limit.prepared.counts_denied)
            && let Some(shard) = shard(locked, id)
        {
            new += usize::from(shard.put(id, &counter.limit, records, held, now));
        }
    }
    (answer, new)
}

#[inline]
fn shard_of(id: Id) -> usize {
    (id.high >> (64 - SHARD_BITS)) as usize
}

/// Shards by their numbers.
type Locked<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>;

fn shard<'a>(locked: &'a mut Locked<'_>, id: Id) -> Option<&'a mut Shard> {
    locked.iter_mut().find(|(number, _)| *number == shard_of(id)).map(|(_, shard)| &mut **shard)
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("max_keys", &self.max_keys).finish_non_exhaustive()
    }
}
