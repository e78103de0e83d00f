//! All checks that the fast path does not handle, and settlements.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use sluice_limiter::Decision;
use smallvec::{SmallVec, smallvec};

use super::cell::{CounterId, Layout, TableCell};
use super::overflow::MergedCheck;
use super::store::{MemoryStore, OVERFLOW, SHARDS, shard_of};
use super::table::{Shard, StoredCounter};
use crate::check::{CheckResponse, Counter, Records, Settlement, decide, settle};

/// Locked shards with their numbers.
type LockedShards<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>;

impl MemoryStore {
    /// Decides any check.
    #[inline(never)]
    pub(super) fn check_any(&self, check: &[Counter], now: u64) -> CheckResponse {
        if let [counter] = check
            && let Some(layout) = &counter.limit.prepared.layout
            && let Some(decision) = self.check_one(counter, layout, now)
        {
            return CheckResponse::single(decision, now);
        }
        self.check_all(check, now)
    }

    /// Checks one counter with one rate whose record fits into a cell. Returns `None` and changes nothing if
    /// the stored record is in another form, or if the key is new and the store is full.
    fn check_one(&self, counter: &Counter, layout: &Layout, now: u64) -> Option<Decision> {
        let Counter { limit, key, cost } = counter;
        let id = limit.prepared.id(key.0);
        let mut shard = self.lock(shard_of(id));
        self.sweep(&mut shard, now);
        let found = shard.table.seek(id);
        let stored = match found {
            Ok(at) => Some(shard.table.get(at).filter(|cell| cell.id == id.tagged(layout))?.unpack(layout)),
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
            // Only logs count denials, and they do not fit into a cell.
            Err(_) if !room => {}
            Err(at) => {
                let cell = TableCell::pack(id, layout, &record)?;
                if !self.reserve() {
                    return None;
                }
                shard.insert(id, at, cell);
            }
        }
        Some(decision)
    }

    /// Decides any check.
    fn check_all(&self, check: &[Counter], now: u64) -> CheckResponse {
        let mut ids: SmallVec<[CounterId; 4]> =
            check.iter().map(|counter| counter.limit.prepared.id(counter.key.0)).collect();
        let mut overflowed: SmallVec<[bool; 4]> = smallvec![false; ids.len()];
        loop {
            let mut locked = self.lock_all(&ids);
            for (_, shard) in &mut locked {
                self.sweep(shard, now);
            }
            let (mut reserved, mut full) = (0, false);
            for ((id, overflowed), counter) in ids.iter_mut().zip(&mut overflowed).zip(check) {
                if *overflowed || shard(&mut locked, *id).is_none_or(|shard| shard.table.seek(*id).is_ok()) {
                    continue;
                }
                if self.reserve() {
                    reserved += 1;
                } else {
                    (full, *overflowed, *id) = (true, true, counter.limit.prepared.id(OVERFLOW));
                }
            }
            if full {
                // The overflow counter may be in a shard that is not locked, so all shards are locked again.
                self.keys.fetch_sub(reserved, Ordering::Relaxed);
                continue;
            }
            let (response, new) = match MergedCheck::new(check, &ids) {
                None => decide_locked(&mut locked, check, &ids, now),
                Some(merged) => {
                    let (response, new) = decide_locked(&mut locked, &merged.check, &merged.ids, now);
                    (merged.expand(&response), new)
                }
            };
            self.keys.fetch_add(new, Ordering::Relaxed);
            self.keys.fetch_sub(reserved, Ordering::Relaxed);
            return response;
        }
    }

    /// Corrects a counter. Returns false if it does not exist.
    pub(super) fn settle_key_at(&self, settlement: &Settlement, key: u128, now: u64) -> bool {
        let limit = &settlement.limit;
        let id = limit.prepared.id(key);
        let mut shard = self.lock(shard_of(id));
        let (mut records, stored) = shard.take(id, limit);
        if stored.exists {
            settle(settlement, &mut records, now);
            shard.put(id, limit, records, stored, now);
            return true;
        }
        false
    }

    /// Removes some expired counters from a shard if a sweep is due. Also sweeps another shard, because an
    /// idle shard is never swept by its own checks.
    fn sweep(&self, shard: &mut Shard, now: u64) {
        if !shard.tick() {
            return;
        }
        let mut removed = shard.sweep(now);
        let next = self.foreign_sweeps.fetch_add(1, Ordering::Relaxed) % SHARDS;
        if let Ok(mut other) = self.shards[next].0.try_lock() {
            other.cool(&self.hot[next]);
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

    /// Locks the shards of these counters, each once, in ascending order.
    fn lock_all(&self, ids: &[CounterId]) -> LockedShards<'_> {
        let mut order: SmallVec<[usize; 4]> = ids.iter().map(|&id| shard_of(id)).collect();
        order.sort_unstable();
        order.dedup();
        order.into_iter().map(|shard| (shard, self.lock(shard))).collect()
    }
}

/// Decides a check on the counters with these ids, whose shards are locked. Also returns how many of them are
/// new.
fn decide_locked(
    locked: &mut LockedShards<'_>,
    check: &[Counter],
    ids: &[CounterId],
    now: u64,
) -> (CheckResponse, usize) {
    let taken = ids.iter().zip(check).map(|(&id, counter)| {
        shard(locked, id).map(|shard| shard.take(id, &counter.limit)).unwrap_or_default()
    });
    let (mut records, stored): (SmallVec<[Records; 4]>, SmallVec<[StoredCounter; 4]>) = taken.unzip();
    for (records, stored) in records.iter_mut().zip(&stored) {
        // After an edit, the records of the former rates determine what the new ones start with.
        records.extend(stored.others().iter().cloned());
    }
    let response = decide(check, &mut records, now);
    let mut new = 0;
    for (((&id, counter), records), stored) in ids.iter().zip(check).zip(records).zip(stored) {
        // A denied check creates no counter.
        if (response.admitted || stored.exists || counter.limit.prepared.counts_denied)
            && let Some(shard) = shard(locked, id)
        {
            new += usize::from(shard.put(id, &counter.limit, records, stored, now));
        }
    }
    (response, new)
}

fn shard<'a>(locked: &'a mut LockedShards<'_>, id: CounterId) -> Option<&'a mut Shard> {
    locked.iter_mut().find(|(number, _)| *number == shard_of(id)).map(|(_, shard)| &mut **shard)
}
