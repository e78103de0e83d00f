//! Checks, settlements and resets: the shards of the counters are locked, and the definition decides on their records.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use sluice_limiter::{Record, Reserved, SlotsFound};
use smallvec::SmallVec;

use super::overflow::MergedCheck;
use super::shard::Shard;
use super::store::{MemoryStore, OVERFLOW, SHARDS, shard_of};
use crate::check::{
    CheckResponse, Counter, KeyHash, LimitSpec, Lookup, Records, Settlement, Taking, decide_as, find, reset,
    settle, take, written,
};
use crate::key_usage::KeyUsage;

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
    pub(super) fn decide_at(&self, check: &[Counter], now: u64, is_forced: bool) -> CheckResponse {
        let mut ids: Ids = check.iter().map(|counter| counter.limit.counter_id(counter.key)).collect();
        loop {
            let mut locked = self.lock_all(&ids, now);
            let Some(reserved) = self.reserve_all(&mut locked, check, &mut ids, now) else {
                // An overflow counter may be in a shard that is not locked, so all shards are locked again.
                continue;
            };
            let (mut response, new) = match MergedCheck::new(check, &ids) {
                None => self.decide_locked(&mut locked, check, &ids, (now, is_forced)),
                Some(merged) => {
                    let merged_ids = &merged.ids;
                    let (response, new) =
                        self.decide_locked(&mut locked, &merged.check, merged_ids, (now, is_forced));
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
            return response;
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
                    locked.shard_mut(*id).hurry();
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
        let now = self.clock.now();
        if let Some(counter) = settlement.more() {
            self.decide_at(&[counter], now, true);
            return SlotsFound::Enough;
        }
        let limit = &settlement.limit;
        let id = limit.counter_id(if settlement.overflowed { OVERFLOW } else { settlement.key });
        let mut shard = self.lock(shard_of(id));
        let (found, before, after) = if let Some(counter) = shard.get_mut(id, now) {
            let found = settle(settlement, &mut *counter.records, now);
            (found, counter.update_expiry(), counter.expires)
        } else {
            // Slots that must be there are made again.
            let mut records = Records::new();
            let found = settle(settlement, &mut records, now);
            let is_lost = settlement.least > 0 && !records.is_empty();
            if !is_lost || !(shard.has(id) || self.reserve()) {
                return SlotsFound::Enough;
            }
            let (before, after) = shard.put(id, records);
            (found, before.unwrap_or(0), after)
        };
        if !settlement.overflowed {
            self.registries.replace(limit, before, after, now);
        }
        found
    }

    /// Returns a reservation; `None` if there is no such one.
    #[must_use]
    pub fn find(&self, lookup: &Lookup) -> Option<Reserved> {
        let (id, now) = (lookup.ledger.counter_id(lookup.key), self.clock.now());
        find(lookup.id, self.lock(shard_of(id)).records(id, now), now)
    }

    /// Takes a reservation out of its ledger and corrects its charge. Returns whether there was such one.
    pub fn take(&self, taking: &Taking) -> bool {
        let (id, now) = (taking.ledger.counter_id(taking.correction.key), self.clock.now());
        let is_taken = self.lock(shard_of(id)).get_mut(id, now).is_some_and(|ledger| {
            let is_taken = take(taking.id, &mut ledger.records, now);
            ledger.update_expiry();
            is_taken
        });
        if is_taken {
            self.settle(&taking.correction);
        }
        is_taken
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
            if shard.tick() && !swept {
                self.sweep(shard, now);
                swept = true;
            }
        }
        locked
    }

    /// Removes the expired counters of a shard. Also sweeps another shard, because an idle shard is never swept by its own
    /// checks.
    fn sweep(&self, shard: &mut Shard, now: u64) {
        let mut removed = shard.sweep(now);
        let next = self.foreign_sweeps.fetch_add(1, Ordering::Relaxed) % SHARDS;
        if let Ok(mut other) = self.shards[next].0.try_lock() {
            removed += other.sweep(now);
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
