//! All checks that the fast path does not handle, and settlements.

use std::sync::MutexGuard;
use std::sync::atomic::Ordering;

use sluice_limiter::{Decision, Record, Reserved, SlotsFound};
use smallvec::{SmallVec, smallvec};

use super::cell::{CounterId, Layout, TableCell};
use super::key_registries::usage;
use super::overflow::MergedCheck;
use super::store::{MemoryStore, OVERFLOW, SHARDS, shard_of};
use super::table::{Shard, StoredCounter};
use crate::check::{
    CheckResponse, Counter, KeyHash, LimitSpec, Lookup, Records, Settlement, Taking, decide_as, find, reset,
    settle, take,
};
use crate::key_usage::KeyUsages;

/// Locked shards with their numbers.
type LockedShards<'a> = SmallVec<[(usize, MutexGuard<'a, Shard>); 4]>;

impl MemoryStore {
    /// Decides any check.
    #[inline(never)]
    pub(super) fn check_any(&self, check: &[Counter], now: u64) -> CheckResponse {
        if let [counter] = check
            && let Some(layout) = &counter.limit.prepared.layout
            && let Some((decision, used)) = self.check_one(counter, layout, now)
        {
            let mut response = CheckResponse::single(decision, now);
            response.key_usages.0.extend(used.map(|used| usage(0, Some(used))));
            return response;
        }
        self.check_all(check, now)
    }

    /// Checks one counter with one rate whose record fits into a cell. Returns `None` and changes nothing if
    /// the stored record is in another form, or if the key is new and the store or the limit is full. Also returns the
    /// part of the limit's maximum number of keys that is in use, if the key was counted.
    fn check_one(&self, counter: &Counter, layout: &Layout, now: u64) -> Option<(Decision, Option<u16>)> {
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
        let before = stored.as_ref().map_or(0, Record::expires_at);
        // A counter that has expired and was not removed yet is new as well.
        if found.is_ok() && before <= now / 1000 && !self.registries.has_room(limit, now) {
            return None;
        }
        let (record, at) = rate.roll(stored, now + rate.phase(key.0));
        let room = rate.has_room(&record, at, *cost);
        let record =
            if room { rate.charge(record, at, *cost) } else { rate.charge_denied(record, at, *cost) };
        let decision = rate.decision(&record, at, *cost, room, room);
        let after = record.expires_at();
        match found {
            Ok(at) => shard.set(id, at, layout, record),
            Err(_) if !room && !rate.count_denied => return Some((decision, None)),
            Err(at) => {
                let cell = TableCell::pack(id, layout, &record)?;
                if !self.registries.has_room(limit, now) || !self.reserve() {
                    return None;
                }
                if room && *cost == 0 {
                    self.keys.fetch_sub(1, Ordering::Relaxed);
                    return Some((decision, None));
                }
                shard.insert(id, at, cell);
            }
        }
        Some((decision, self.registries.replace(limit, before, after, now)))
    }

    /// Charges a check, whether or not there is room.
    pub(super) fn charge(&self, check: &[Counter], now: u64) -> CheckResponse {
        self.decide_all(check, now, true)
    }

    /// Decides any check.
    fn check_all(&self, check: &[Counter], now: u64) -> CheckResponse {
        self.decide_all(check, now, false)
    }

    fn decide_all(&self, check: &[Counter], now: u64, is_forced: bool) -> CheckResponse {
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
                let is_known = |shard: &mut Shard| match shard.table.seek(*id) {
                    Ok(at) => {
                        let lives = shard.table.get(at).is_some_and(|cell| cell.expires_at() > now / 1000);
                        lives || self.registries.has_room(&counter.limit, now)
                    }
                    Err(_) => false,
                };
                if *overflowed || shard(&mut locked, *id).is_none_or(is_known) {
                    continue;
                }
                if self.registries.has_room(&counter.limit, now) && self.reserve() {
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
            let (mut response, new) = match MergedCheck::new(check, &ids) {
                None => self.decide_locked(&mut locked, check, &ids, (now, is_forced)),
                Some(merged) => {
                    let (response, new) =
                        self.decide_locked(&mut locked, &merged.check, &merged.ids, (now, is_forced));
                    (merged.expand(&response), new)
                }
            };
            let overflowed = overflowed.iter().enumerate().filter(|&(_, &overflowed)| overflowed);
            response.key_usages.0.extend(overflowed.map(|(n, _)| usage(n, None)));
            self.keys.fetch_add(new, Ordering::Relaxed);
            self.keys.fetch_sub(reserved, Ordering::Relaxed);
            return response;
        }
    }

    /// Refunds a part of a charge. Returns what was found of the slots that must be there. A counter that does not exist is made for
    /// those, if there is room for one.
    pub(super) fn refund_key_at(&self, settlement: &Settlement, key: u128, now: u64) -> SlotsFound {
        let limit = &settlement.limit;
        let id = limit.prepared.id(key);
        let mut shard = self.lock(shard_of(id));
        let (mut records, stored) = shard.take(id, limit);
        if stored.exists || settlement.least > 0 && self.reserve() {
            let before = expiry(&records, stored.others());
            let found = settle(settlement, &mut records, now);
            let after = expiry(&records, stored.others());
            shard.put(id, limit, records, stored, now);
            if key != OVERFLOW {
                self.registries.replace(limit, before, after, now);
            }
            return found;
        }
        SlotsFound::Enough
    }

    /// Returns a reservation of a ledger.
    pub(super) fn find_at(&self, lookup: &Lookup, now: u64) -> Option<Reserved> {
        self.with_ledger(&lookup.ledger, lookup.key, now, |records| find(lookup.id, records, now))?
    }

    /// Takes a reservation out of its ledger. Returns whether there was such one.
    pub(super) fn take_at(&self, taking: &Taking, now: u64) -> bool {
        let (ledger, key) = (&taking.ledger, taking.correction.key);
        self.with_ledger(ledger, key, now, |records| take(taking.id, records, now)).unwrap_or(false)
    }

    /// Does something with the records of a ledger, if it exists.
    fn with_ledger<T>(
        &self,
        ledger: &LimitSpec,
        key: KeyHash,
        now: u64,
        act: impl FnOnce(&mut Records) -> T,
    ) -> Option<T> {
        let id = ledger.prepared.id(key.0);
        let mut shard = self.lock(shard_of(id));
        let (mut records, stored) = shard.take(id, ledger);
        if !stored.exists {
            return None;
        }
        let result = act(&mut records);
        shard.put(id, ledger, records, stored, now);
        Some(result)
    }

    /// Removes a counter. Its cell stays until the next sweep, as one that has expired, if nothing is left of it.
    pub(super) fn reset_at(&self, limit: &LimitSpec, key: KeyHash, now: u64) {
        let id = limit.prepared.id(key.0);
        let mut shard = self.lock(shard_of(id));
        let (records, stored) = shard.take(id, limit);
        if stored.exists {
            let before = expiry(&records, stored.others());
            // Nobody beside this store knows its counters.
            let left = reset(limit, &[], now);
            let after = expiry(&left, &[]);
            shard.put(id, limit, left, StoredCounter::default(), now);
            self.registries.replace(limit, before, after, now);
        }
    }

    /// Decides a check on the counters with these ids, whose shards are locked. Also returns how many of them are new.
    fn decide_locked(
        &self,
        locked: &mut LockedShards<'_>,
        check: &[Counter],
        ids: &[CounterId],
        (now, is_forced): (u64, bool),
    ) -> (CheckResponse, usize) {
        let taken = ids.iter().zip(check).map(|(&id, counter)| {
            shard(locked, id).map(|shard| shard.take(id, &counter.limit)).unwrap_or_default()
        });
        let (mut records, stored): (SmallVec<[Records; 4]>, SmallVec<[StoredCounter; 4]>) = taken.unzip();
        let expiries: SmallVec<[u64; 4]> =
            records.iter().zip(&stored).map(|(records, stored)| expiry(records, stored.others())).collect();
        for (records, stored) in records.iter_mut().zip(&stored) {
            // After an edit, the records of the former rates determine what the new ones start with.
            records.extend(stored.others().iter().cloned());
        }
        let is_overflow = |(id, counter): (&CounterId, &Counter)| *id == counter.limit.prepared.id(OVERFLOW);
        let shared: SmallVec<[bool; 4]> = ids.iter().zip(check).map(is_overflow).collect();
        let mut response = decide_as(check, &mut records, now, is_forced, &shared);
        let (mut new, mut usages) = (0, KeyUsages::default());
        let counters = ids.iter().zip(check).zip(records).zip(stored).zip(expiries).enumerate();
        for (n, ((((&id, counter), records), stored), before)) in counters {
            // A check that charges nothing creates no counter.
            let charged =
                if response.admitted { counter.cost > 0 } else { counter.limit.counted_denial(&records) };
            if (charged || stored.exists)
                && let Some(shard) = shard(locked, id)
            {
                let after = expiry(&records, stored.others());
                new += usize::from(shard.put(id, &counter.limit, records, stored, now));
                if id != counter.limit.prepared.id(OVERFLOW) {
                    let used = self.registries.replace(&counter.limit, before, after, now);
                    usages.0.extend(used.map(|used| usage(n, Some(used))));
                }
            }
        }
        response.key_usages = usages;
        (response, new)
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

/// Returns the latest expiry of a counter's records, 0 if it has none.
fn expiry(records: &[Record], others: &[Record]) -> u64 {
    records.iter().chain(others).map(Record::expires_at).max().unwrap_or(0)
}

fn shard<'a>(locked: &'a mut LockedShards<'_>, id: CounterId) -> Option<&'a mut Shard> {
    locked.iter_mut().find(|(number, _)| *number == shard_of(id)).map(|(_, shard)| &mut **shard)
}
