//! Counters in this process. A check locks the shards of its counters in ascending order, so that it is
//! atomic across several counters and cannot deadlock, and the definition in [`check`](crate::check) decides on their records. There is no
//! await in this module, and so no lock is held across one. [`shard`]: a part of the counters, behind one lock.
//!
//! Memory is bounded. Checks now and then remove the expired counters of a shard. Beyond the `max_keys` of the store or of a limit,
//! the new keys of a limit share one overflow counter, and known keys keep their own.

mod shard;
#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_limiter::{Record, Reserved, SlotsFound};
use smallvec::SmallVec;

use self::shard::{KeyRegistries, MergedCheck, Shard};
use crate::check::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Lookup, Records, Settlement, Taking,
    decide_as, find, reset, settle, take, written,
};
use crate::clock::Clock;
use crate::failure::{StoreError, StoreHealth};
use crate::key_usage::KeyUsage;
use crate::store::Store;

/// So many that a sweep of a shard takes some tens of microseconds when the store holds a million keys.
const SHARD_BITS: u32 = 8;
const SHARDS: usize = 1 << SHARD_BITS;

/// Key of the overflow counter, which new keys of a limit share when the store is full.
const OVERFLOW: KeyHash = KeyHash(0);

/// The memory store.
pub struct MemoryStore {
    shards: Box<[AlignedShard; SHARDS]>,
    clock: Clock,
    max_keys: usize,
    /// Numbers of keys by limit, for limits with a maximum.
    registries: KeyRegistries,
    /// Number of keys in all shards.
    keys: AtomicUsize,
    foreign: Mutex<ForeignSweep>,
}

/// The sweeps of shards by checks of others.
#[derive(Debug, Default)]
struct ForeignSweep {
    /// The next shard.
    shard: usize,
    /// Number of checks since the last sweep.
    checks: usize,
}

impl ForeignSweep {
    fn next(&self) -> Self {
        Self { shard: (self.shard + 1) % SHARDS, checks: 0 }
    }
}

/// A shard on cache lines of its own, so that processors do not invalidate each other's lines.
#[repr(align(128))]
struct AlignedShard(Mutex<Shard>);

impl MemoryStore {
    /// A store of at most `max_keys` keys, not counting overflow counters.
    #[must_use]
    pub fn new(max_keys: usize, clock: Clock) -> Self {
        Self {
            shards: Box::new(std::array::from_fn(|_| AlignedShard(Mutex::default()))),
            max_keys,
            registries: KeyRegistries::default(),
            keys: AtomicUsize::new(0),
            foreign: Mutex::default(),
            clock,
        }
    }

    /// Returns the number of keys.
    #[must_use]
    pub fn keys(&self) -> usize {
        self.keys.load(Ordering::Relaxed)
    }

    /// Locks a shard.
    #[inline]
    fn lock(&self, number: usize) -> MutexGuard<'_, Shard> {
        // A panic leaves the shard consistent, so a poisoned lock can be used.
        self.shards[number].0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Store for MemoryStore {
    #[inline]
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        Ok(Self::check(self, &check))
    }

    async fn acquire(&self, counter: Counter, times: u64) -> Result<Grant, StoreError> {
        Ok(Self::acquire(self, &counter, times))
    }

    async fn settle(&self, settlement: Settlement) -> Result<SlotsFound, StoreError> {
        Ok(Self::settle(self, &settlement))
    }

    async fn find(&self, lookup: Lookup) -> Result<Option<Reserved>, StoreError> {
        Ok(Self::find(self, &lookup))
    }

    async fn take(&self, taking: Taking) -> Result<bool, StoreError> {
        Ok(Self::take(self, &taking))
    }

    async fn reset(&self, limit: &Arc<LimitSpec>, key: KeyHash) -> Result<u64, StoreError> {
        Ok(Self::reset(self, limit, key))
    }

    fn health(&self) -> StoreHealth {
        StoreHealth::Healthy
    }

    fn is_in_process(&self) -> bool {
        true
    }
}

/// Returns the number of a counter's shard.
#[inline]
fn shard_of(id: u128) -> usize {
    (id >> (u128::BITS - SHARD_BITS)) as usize
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("max_keys", &self.max_keys).finish_non_exhaustive()
    }
}

/// So many checks a sweep comes nearer for each new key without room.
const HURRY: usize = 64;

/// Ids of counters.
type Ids = SmallVec<[u128; 4]>;

/// Locked shards, in the order of their numbers.
struct Locked<'a>(SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>);

impl Locked<'_> {
    /// Returns the position of the shard of a counter, which must be locked.
    fn position(&self, id: u128) -> usize {
        self.0.partition_point(|(number, _)| *number < shard_of(id))
    }

    fn shard(&self, id: u128) -> &Shard {
        &self.0[self.position(id)].1
    }

    fn shard_mut(&mut self, id: u128) -> &mut Shard {
        let at = self.position(id);
        &mut self.0[at].1
    }
}

/// Returns the id of the counter that a settlement corrects. More cost is charged as a check would be.
fn corrected(settlement: &Settlement) -> u128 {
    let is_overflow = settlement.overflowed && settlement.delta <= 0;
    settlement.limit.counter_id(if is_overflow { OVERFLOW } else { settlement.key })
}

/// Reports whether the counter with this id is the overflow counter of a limit.
fn is_overflow(id: u128, counter: &Counter) -> bool {
    id == counter.limit.counter_id(OVERFLOW)
}

impl MemoryStore {
    /// Decides a check now.
    #[must_use]
    pub fn check(&self, check: &[Counter]) -> CheckResponse {
        self.decide_at(check, self.clock.now(), false)
    }

    /// Decides a check, or charges it whether or not there is room.
    fn decide_at(&self, check: &[Counter], now: u64, is_forced: bool) -> CheckResponse {
        let mut ids: Ids = check.iter().map(|counter| counter.limit.counter_id(counter.key)).collect();
        loop {
            let mut locked = self.lock_all(&ids, now);
            if let Some(response) = self.decide_with(&mut locked, check, &mut ids, (now, is_forced)) {
                return response;
            }
        }
    }

    /// Decides a check with the shards of its counters. Returns `None` if overflow counters, whose ids are then in place of others, must
    /// decide: their shards may not be locked.
    fn decide_with(
        &self,
        locked: &mut Locked<'_>,
        check: &[Counter],
        ids: &mut Ids,
        (now, is_forced): (u64, bool),
    ) -> Option<CheckResponse> {
        let reserved = self.reserve_all(locked, check, ids, now)?;
        let (mut response, new) = match MergedCheck::new(check, ids) {
            None => self.decide_locked(locked, check, ids, (now, is_forced)),
            Some(merged) => {
                let (response, new) =
                    self.decide_locked(locked, &merged.check, &merged.ids, (now, is_forced));
                (merged.expand(&response), new)
            }
        };
        let overflowed =
            ids.iter().zip(check).enumerate().filter(|(_, (id, counter))| is_overflow(**id, counter));
        response.key_usages.0.extend(overflowed.map(|(n, _)| KeyUsage { counter: n as u8, used: None }));
        if reserved > new {
            self.keys.fetch_sub(reserved - new, Ordering::Relaxed);
        } else if new > reserved {
            // Overflow counters need no room.
            self.keys.fetch_add(new - reserved, Ordering::Relaxed);
        }
        Some(response)
    }

    /// Charges a counter up to so many times, see [`Store::acquire`].
    fn acquire(&self, counter: &Counter, times: u64) -> Grant {
        let (now, mut ids) = (self.clock.now(), Ids::from_iter([counter.limit.counter_id(counter.key)]));
        loop {
            let mut locked = self.lock_all(&ids, now);
            let mut decide = |cost| {
                let check = [Counter { cost, ..counter.clone() }];
                self.decide_with(&mut locked, &check, &mut ids, (now, false))
            };
            // Only the first check can find that it must lock another shard: the others find the counter or no room either.
            let Some(first) = decide(counter.cost) else { continue };
            let mut granted = u64::from(first.admitted);
            while first.admitted && granted < times && decide(counter.cost).is_some_and(|next| next.admitted)
            {
                granted += 1;
            }
            let Some(response) = decide(0) else { continue };
            return Grant { granted, response: CheckResponse { key_usages: first.key_usages, ..response } };
        }
    }

    /// Reserves room for the counters that do not exist. Returns for how many. If there is no room for some of them, reserves
    /// nothing, replaces their ids by those of the overflow counters of their limits, and returns `None`.
    fn reserve_all(
        &self,
        locked: &mut Locked<'_>,
        check: &[Counter],
        ids: &mut Ids,
        now: u64,
    ) -> Option<usize> {
        let (mut reserved, mut is_full) = (0, false);
        for (id, counter) in ids.iter_mut().zip(check) {
            let shard = locked.shard(*id);
            if !shard.records(*id, now).is_empty() || is_overflow(*id, counter) {
                continue;
            }
            let has_room = self.registries.has_room(&counter.limit, now);
            if has_room && shard.has(*id) {
                continue;
            }
            if has_room && self.reserve() {
                reserved += 1;
            } else {
                if has_room {
                    // Expired counters may take it: the next sweep comes nearer.
                    locked.shard_mut(*id).tick(HURRY);
                }
                (is_full, *id) = (true, counter.limit.counter_id(OVERFLOW));
            }
        }
        if is_full {
            self.keys.fetch_sub(reserved, Ordering::Relaxed);
        }
        (!is_full).then_some(reserved)
    }

    /// Decides a check on the counters with these ids, whose shards are locked. Also returns how many of them are new.
    fn decide_locked(
        &self,
        locked: &mut Locked<'_>,
        check: &[Counter],
        ids: &[u128],
        (now, is_forced): (u64, bool),
    ) -> (CheckResponse, usize) {
        let shared: SmallVec<[bool; 4]> =
            ids.iter().zip(check).map(|(&id, counter)| is_overflow(id, counter)).collect();
        let before: SmallVec<[&[Record]; 4]> =
            ids.iter().map(|&id| locked.shard(id).records(id, now)).collect();
        let (mut response, after) = decide_as(check, &before, now, is_forced, &shared);
        drop(before);
        let (mut new, admitted) = (0, response.admitted);
        for (n, ((&id, counter), after)) in ids.iter().zip(check).zip(after).enumerate() {
            let change = |before: &[Record]| written(counter, admitted, before, after, now);
            let Some((before, after)) = locked.shard_mut(id).change(id, now, change) else { continue };
            new += usize::from(before.is_none());
            if !shared[n] {
                let used = self.registries.replace(&counter.limit, before.unwrap_or(0), after, now);
                response
                    .key_usages
                    .0
                    .extend(used.map(|used| KeyUsage { counter: n as u8, used: Some(used) }));
            }
        }
        (response, new)
    }

    /// Corrects a charge. More cost is charged now, to the overflow counter if the key has none of its own. A refund of a
    /// counter that has been removed has no effect. Returns what was found of the slots that must be there.
    pub fn settle(&self, settlement: &Settlement) -> SlotsFound {
        let (now, mut id) = (self.clock.now(), corrected(settlement));
        loop {
            let mut locked = self.lock_all(&[id], now);
            if let Some(found) = self.settle_with(&mut locked, settlement, &mut id, now) {
                return found;
            }
        }
    }

    /// Corrects a charge with the shard of its counter. Returns `None` as [`MemoryStore::decide_with`] does.
    fn settle_with(
        &self,
        locked: &mut Locked<'_>,
        settlement: &Settlement,
        id: &mut u128,
        now: u64,
    ) -> Option<SlotsFound> {
        if let Some(counter) = settlement.more() {
            let mut ids = Ids::from_iter([*id]);
            let charged = self.decide_with(locked, &[counter], &mut ids, (now, true));
            *id = ids[0];
            return charged.map(|_| SlotsFound::Enough);
        }
        let (limit, id) = (&settlement.limit, *id);
        let shard = locked.shard_mut(id);
        let (found, before, after) = if let Some(counter) = shard.get_mut(id, now) {
            let found = settle(settlement, &mut *counter.records, now);
            (found, counter.update_expiry(), counter.expires)
        } else {
            // Slots that must be there are made again.
            let mut records = Records::new();
            let found = settle(settlement, &mut records, now);
            let is_lost = settlement.least > 0 && !records.is_empty();
            if !is_lost || !(shard.has(id) || self.reserve()) {
                return Some(SlotsFound::Enough);
            }
            let (before, after) = shard.put(id, records);
            (found, before.unwrap_or(0), after)
        };
        if !settlement.overflowed {
            self.registries.replace(limit, before, after, now);
        }
        Some(found)
    }

    /// Returns a reservation; `None` if there is no such one.
    #[must_use]
    pub fn find(&self, lookup: &Lookup) -> Option<Reserved> {
        let (id, now) = (lookup.ledger.counter_id(lookup.key), self.clock.now());
        find(lookup.id, self.lock(shard_of(id)).records(id, now), now)
    }

    /// Takes a reservation out of its ledger and corrects its charge. Returns whether there was such one.
    pub fn take(&self, taking: &Taking) -> bool {
        let Taking { ledger, id: reservation, correction } = taking;
        let (ledger, now) = (ledger.counter_id(correction.key), self.clock.now());
        let mut id = corrected(correction);
        loop {
            let mut locked = self.lock_all(&[ledger, id], now);
            if find(Some(*reservation), locked.shard(ledger).records(ledger, now), now).is_none() {
                return false;
            }
            if self.settle_with(&mut locked, correction, &mut id, now).is_none() {
                continue;
            }
            return locked.shard_mut(ledger).get_mut(ledger, now).is_some_and(|ledger| {
                let is_taken = take(*reservation, &mut ledger.records, now);
                ledger.update_expiry();
                is_taken
            });
        }
    }

    /// Removes a counter, but for what its limit must still know. Returns the time.
    pub fn reset(&self, limit: &LimitSpec, key: KeyHash) -> u64 {
        let (id, now) = (limit.counter_id(key), self.clock.now());
        let mut shard = self.lock(shard_of(id));
        if shard.records(id, now).is_empty() {
            return now;
        }
        // Nobody beside this store knows its counters, so those without usage need not stay.
        let left = reset(limit, &[], now);
        let (before, after) = if left.is_empty() {
            self.keys.fetch_sub(1, Ordering::Relaxed);
            (shard.remove(id), 0)
        } else {
            shard.put(id, left)
        };
        self.registries.replace(limit, before.unwrap_or(0), after, now);
        now
    }

    /// Locks the shards of these counters, each once, in ascending order, and sweeps those that are due.
    fn lock_all(&self, ids: &[u128], now: u64) -> Locked<'_> {
        let mut order: SmallVec<[usize; 4]> = ids.iter().map(|&id| shard_of(id)).collect();
        order.sort_unstable();
        order.dedup();
        let mut locked = Locked(order.into_iter().map(|shard| (shard, self.lock(shard))).collect());
        let mut swept = false;
        for (_, shard) in &mut locked.0 {
            // A check sweeps once, however many of its shards are due: the others are due at the next one.
            shard.tick(1);
            if shard.is_due() && !swept {
                self.sweep(shard, now);
                swept = true;
            }
        }
        locked
    }

    /// Removes the expired counters of a shard. Now and then also those of another one, because an idle shard is never swept by its
    /// own checks.
    fn sweep(&self, shard: &mut Shard, now: u64) {
        let (checks, mut removed) = shard.sweep(now);
        if let Ok(mut foreign) = self.foreign.try_lock() {
            foreign.checks += checks;
            match self.shards[foreign.shard].0.try_lock() {
                Ok(other) if !other.is_due_after(foreign.checks) => {}
                Ok(mut other) => {
                    removed += other.sweep(now).1;
                    *foreign = foreign.next();
                }
                // One whose lock is held has checks of its own.
                Err(_) => *foreign = foreign.next(),
            }
        }
        if removed > 0 {
            self.keys.fetch_sub(removed, Ordering::Relaxed);
        }
    }

    /// Reserves room for one more key. Returns false if the store is full.
    fn reserve(&self) -> bool {
        let room = self.keys.fetch_add(1, Ordering::Relaxed) < self.max_keys;
        if !room {
            self.keys.fetch_sub(1, Ordering::Relaxed);
        }
        room
    }
}
