//! Counters in this process: shards of a compact table, locked in order, so that a check over several of them is
//! atomic and cannot deadlock. No lock is held across an await: there is none here.
//!
//! Memory is bounded. Every check looks at a few entries of its shard and drops those that expired; beyond
//! `max_keys` new keys of a limit share one overflow counter, and keys already known keep theirs.

use std::hash::{BuildHasher, Hasher};
use std::sync::{Mutex, MutexGuard, PoisonError};

use smallvec::SmallVec;

use crate::check::{Answer, Counter, KeyHash, Records, decide};
use crate::clock::Clock;

const SHARDS: usize = 16;
const SWEPT_PER_CHECK: usize = 2;

/// The memory store.
pub struct MemoryStore {
    shards: [Mutex<Shard>; SHARDS],
    max_keys_per_shard: usize,
    scopes: foldhash::fast::FixedState,
    clock: Clock,
}

/// One shard: entries side by side, so that a sweep can walk them, and where to find each.
#[derive(Default)]
struct Shard {
    entries: Vec<Entry>,
    index: std::collections::HashMap<u128, u32, foldhash::fast::RandomState>,
    swept: usize,
}

struct Entry {
    id: u128,
    records: Records,
}

impl MemoryStore {
    /// A store of at most about `max_keys` keys (spread over 16 shards; overflow counters come on top).
    #[must_use]
    pub fn new(max_keys: usize, clock: Clock) -> Self {
        Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            max_keys_per_shard: max_keys.div_ceil(SHARDS),
            scopes: foldhash::fast::FixedState::with_seed(0x51u64),
            clock,
        }
    }

    /// Decides a check now.
    #[must_use]
    pub fn check(&self, check: &[Counter]) -> Answer {
        self.check_at(check, self.clock.now())
    }

    /// How many keys are held.
    #[must_use]
    pub fn keys(&self) -> usize {
        (0..SHARDS).map(|shard| self.lock(shard).entries.len()).sum()
    }

    fn check_at(&self, check: &[Counter], now: u64) -> Answer {
        let mut ids: SmallVec<[u128; 2]> =
            check.iter().map(|counter| self.id(counter, counter.key)).collect();
        loop {
            let mut locked: SmallVec<[(usize, MutexGuard<'_, Shard>); 2]> = SmallVec::new();
            let mut order: SmallVec<[usize; 2]> = ids.iter().map(|&id| shard_of(id)).collect();
            order.sort_unstable();
            order.dedup();
            for shard in order {
                locked.push((shard, self.lock(shard)));
            }
            let mut overflowed = false;
            // Where each counter is in its shard, if it is there.
            let mut found: SmallVec<[Option<u32>; 2]> = SmallVec::new();
            for &id in &ids {
                // Every shard of `ids` is locked.
                if let Some(shard) = shard(&mut locked, id) {
                    shard.sweep(now);
                }
            }
            // A sweep moves entries: no look-up before the last of them.
            for (id, counter) in ids.iter_mut().zip(check) {
                let Some(shard) = shard(&mut locked, *id) else { continue };
                let at = shard.index.get(id).copied();
                found.push(at);
                if at.is_none() && shard.entries.len() >= self.max_keys_per_shard {
                    let overflow = self.id(counter, KeyHash(0));
                    overflowed |= *id != overflow;
                    *id = overflow;
                }
            }
            if overflowed {
                // The overflow counter may live in a shard that is not locked: begin again with all of them.
                continue;
            }
            let mut records: SmallVec<[Records; 2]> = SmallVec::new();
            for (&id, &at) in ids.iter().zip(&found) {
                let entry = at.and_then(|at| shard(&mut locked, id)?.entries.get(at as usize));
                records.push(entry.map(|entry| entry.records.clone()).unwrap_or_default());
            }
            let answer = decide(check, &mut records, now);
            if answer.admitted || check.iter().any(|counter| counter.limit.counts_denied()) {
                for ((&id, at), records) in ids.iter().zip(found).zip(records) {
                    if let Some(shard) = shard(&mut locked, id) {
                        shard.put(id, at, records, now);
                    }
                }
            }
            return answer;
        }
    }

    /// Keys are hashes with a secret already; the scope only has to move them apart.
    fn id(&self, counter: &Counter, key: KeyHash) -> u128 {
        let mut hasher = self.scopes.build_hasher();
        hasher.write(counter.limit.scope.as_bytes());
        let low = hasher.finish();
        hasher.write_u8(1);
        key.0 ^ (u128::from(hasher.finish()) << 64 | u128::from(low))
    }

    fn lock(&self, shard: usize) -> MutexGuard<'_, Shard> {
        // A shard is consistent between any two statements that can panic.
        self.shards[shard].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn shard_of(id: u128) -> usize {
    (id >> 124) as usize
}

fn shard<'a>(locked: &'a mut [(usize, MutexGuard<'_, Shard>)], id: u128) -> Option<&'a mut Shard> {
    locked.iter_mut().find(|(n, _)| *n == shard_of(id)).map(|(_, shard)| &mut **shard)
}

impl Shard {
    /// Looks at the next few entries and drops those that expired.
    fn sweep(&mut self, now: u64) {
        let now = now / 1000;
        for _ in 0..SWEPT_PER_CHECK.min(self.entries.len()) {
            if self.swept >= self.entries.len() {
                self.swept = 0;
            }
            if self.entries[self.swept].records.iter().all(|record| record.expires_at() <= now) {
                let gone = self.entries.swap_remove(self.swept);
                self.index.remove(&gone.id);
                if let Some(moved) = self.entries.get(self.swept) {
                    self.index.insert(moved.id, self.swept as u32);
                }
                if self.entries.is_empty() {
                    return;
                }
            } else {
                self.swept += 1;
            }
        }
    }

    /// Stores a counter's records; `at` is where it was found under this lock.
    fn put(&mut self, id: u128, at: Option<u32>, records: Records, now: u64) {
        // Two new counters of one check may be the same one when both overflow.
        let at = at.or_else(|| self.index.get(&id).copied());
        if let Some(entry) = at.and_then(|at| self.entries.get_mut(at as usize)) {
            // A record of another period stays until it expires: during a roll-out both are in use.
            let before = std::mem::replace(&mut entry.records, records);
            let ours = entry.records.len();
            for old in before {
                let foreign = entry.records[..ours].iter().all(|new| new.tag != old.tag);
                if foreign && old.expires_at() > now / 1000 && entry.records.len() - ours < crate::check::MAX_RATES {
                    entry.records.push(old);
                }
            }
        } else {
            self.index.insert(id, self.entries.len() as u32);
            self.entries.push(Entry { id, records });
        }
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore")
            .field("max_keys_per_shard", &self.max_keys_per_shard)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use sluice_limiter::{Algorithm, Period, Rate, Requests};

    use super::*;
    use crate::check::LimitSpec;

    fn limit(scope: &str, requests: u64, period: u64) -> Arc<LimitSpec> {
        let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(period).unwrap());
        let rate = Rate::new(requests, period, Algorithm::SLIDING_WINDOW).unwrap();
        Arc::new(LimitSpec::new(scope, vec![rate]))
    }

    fn counter(limit: &Arc<LimitSpec>, key: u128) -> Counter {
        // Spread the small numbers of a test over the shards, as a hash would.
        let key = KeyHash((key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835));
        Counter { limit: limit.clone(), key, cost: 1 }
    }

    #[test]
    fn store_admits_exactly_the_number_and_again_after_the_window() {
        let clock = Clock::manual(60_000_000);
        let store = MemoryStore::new(100, clock.clone());
        let limit = limit("ns/p/l", 5, 60_000);
        let admitted = |key| (0..20).filter(|_| store.check(&[counter(&limit, key)]).admitted).count();
        assert_eq!(admitted(1), 5);
        assert_eq!(admitted(2), 5);
        clock.advance(120_000);
        assert_eq!(admitted(1), 5);
    }

    #[test]
    fn store_takes_nothing_when_one_of_several_denies() {
        let store = MemoryStore::new(100, Clock::manual(60_000_000));
        let (wide, narrow) = (limit("ns/p/wide", 100, 60_000), limit("ns/p/narrow", 1, 60_000));
        let both = [counter(&wide, 1), counter(&narrow, 1)];
        assert!(store.check(&both).admitted);
        for _ in 0..10 {
            let answer = store.check(&both);
            assert!(!answer.admitted && answer.decisions[0].admitted && !answer.decisions[1].admitted);
        }
        assert_eq!(store.check(&[counter(&wide, 1)]).decisions[0].remaining, 98);
    }

    #[test]
    fn store_forgets_idle_keys() {
        let clock = Clock::manual(60_000_000);
        let store = MemoryStore::new(10_000, clock.clone());
        let limit = limit("ns/p/l", 5, 1_000);
        for key in 0..1_000 {
            assert!(store.check(&[counter(&limit, key)]).admitted);
        }
        assert_eq!(store.keys(), 1_000);
        clock.advance(10_000);
        for key in 0..1_000 {
            let _ = store.check(&[counter(&limit, key % 64)]);
        }
        assert!(store.keys() <= 64, "{} keys left", store.keys());
    }

    #[test]
    fn store_shares_one_counter_among_new_keys_beyond_its_maximum() {
        let store = MemoryStore::new(16, Clock::manual(60_000_000));
        let limit = limit("ns/p/l", 2, 3_600_000);
        assert!(store.check(&[counter(&limit, 0)]).admitted);
        let flood = (1..5_000).filter(|&key| store.check(&[counter(&limit, key)]).admitted).count();
        assert!(flood <= 2 + 64, "{flood} of a flood were admitted");
        assert!(store.keys() <= 32);
        let known = store.check(&[counter(&limit, 0)]);
        assert!(known.admitted && known.decisions[0].remaining == 0, "a known key keeps its own counter");
    }

    #[test]
    fn store_keeps_counts_when_a_number_is_edited() {
        let store = MemoryStore::new(100, Clock::manual(60_000_000));
        let (five, three, eight) =
            (limit("ns/p/l", 5, 60_000), limit("ns/p/l", 3, 60_000), limit("ns/p/l", 8, 60_000));
        assert_eq!((0..4).filter(|_| store.check(&[counter(&five, 1)]).admitted).count(), 4);
        assert!(!store.check(&[counter(&three, 1)]).admitted);
        assert_eq!((0..9).filter(|_| store.check(&[counter(&eight, 1)]).admitted).count(), 4);
    }

    #[test]
    fn store_drops_the_records_of_another_period_when_they_have_expired() {
        let clock = Clock::manual(7_200_000);
        let store = MemoryStore::new(100, clock.clone());
        let (minute, hour) = (limit("ns/p/l", 5, 60_000), limit("ns/p/l", 5, 3_600_000));
        let records =
            || (0..SHARDS).flat_map(|n| store.lock(n).entries.first().map(|e| e.records.len())).sum();
        let after = |limit, millis| -> usize {
            clock.advance(millis);
            assert!(store.check(&[counter(limit, 1)]).admitted);
            records()
        };
        assert_eq!(after(&minute, 0), 1);
        assert_eq!(after(&hour, 60_000), 2, "during a roll-out both are in use");
        assert_eq!(after(&hour, 60_000), 1, "it counts for two of its periods");
    }

    #[test]
    fn store_sweeps_over_damaged_records() {
        let store = MemoryStore::new(100, Clock::manual(60_000_000));
        let limit = limit("ns/p/l", 5, 60_000);
        let damaged = counter(&limit, 1);
        let id = store.id(&damaged, damaged.key);
        for slot in [u64::MAX, u64::MAX / 60_000] {
            let record = sluice_limiter::Record {
                slot,
                current: 1,
                ..sluice_limiter::Record::empty(limit.rates[0].tag(), 0)
            };
            assert_eq!(record.expires_at(), u64::MAX);
            store.lock(shard_of(id)).put(id, None, smallvec::smallvec![record], 0);
            // All of these look at some entries of every shard.
            for key in 2..200 {
                let _ = store.check(&[counter(&limit, key)]);
            }
        }
    }

    #[test]
    fn store_is_atomic_across_shards_from_many_threads() {
        let store = MemoryStore::new(1_000, Clock::manual(60_000_000));
        let limits: Vec<_> = (0..32).map(|n| limit(&format!("ns/p/{n}"), 100, 60_000)).collect();
        let total: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..8)
                .map(|n| {
                    let (store, limits) = (&store, &limits);
                    scope.spawn(move || {
                        let mut check: Vec<_> = limits.iter().map(|limit| counter(limit, 7)).collect();
                        check.rotate_left(n * 4);
                        (0..200).filter(|_| store.check(&check).admitted).count()
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).sum()
        });
        assert_eq!(total, 100);
        for limit in &limits {
            assert!(!store.check(&[counter(limit, 7)]).admitted);
        }
    }
}
