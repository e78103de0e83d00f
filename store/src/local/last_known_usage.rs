//! The usage of counters in the last response of the store. Local counting starts from it when the store
//! fails. A counter that has been evicted from this table starts with nothing used, and its local share is
//! the full share of the limit.
//!
//! A response also tells until when the counter must stay in the store. If the store has to create it again before, it has lost it.

use std::num::NonZeroU32;
use std::sync::{Mutex, MutexGuard, PoisonError};

use sluice_limiter::{Decision, Rate};

/// Number of rates whose usage is kept. Further rates of a limit start with nothing used.
pub(crate) const MAX_KNOWN_RATES: usize = 4;

const WAYS: usize = 4;
const SHARDS: usize = 16;

/// The usage of one counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct KnownUsage {
    /// Time of the response, in microseconds of the store's clock.
    pub at: u64,
    /// Usage of each rate.
    pub used: [u64; MAX_KNOWN_RATES],
}

/// A rate whose usage a flush has added to the store.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FlushedRate {
    /// Index of the rate in the limit.
    pub(crate) rate: usize,
    /// Usage that the store then has, and when by its clock, if that is known.
    pub(crate) then: Option<(u64, u64)>,
}

/// Knowledge about one counter.
#[derive(Debug, Clone, Copy)]
struct Entry {
    id: u128,
    usage: KnownUsage,
    /// Time until which the counter must stay in the store, in microseconds of its clock; 0 if that is not certain.
    stays_until: u64,
    /// The epoch of the response. What is known from another epoch does not prove a loss.
    epoch: NonZeroU32,
}

/// A response of the store about one counter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SeenUsage<'a> {
    pub(crate) decisions: &'a [Decision],
    /// Time of the response, in microseconds of the store's clock.
    pub(crate) at: u64,
    /// Whether the response charged the counter.
    pub(crate) charged: bool,
    /// Whether the store had no such counter before.
    pub(crate) created: bool,
    /// Begins with each server, and each time its clock goes back.
    pub(crate) epoch: NonZeroU32,
}

/// A counter is lost if it should have stayed for at least so long, in microseconds: clocks are corrected a little.
const LEAST_STAY: u64 = 1_000_000;

type Set = [Option<Entry>; WAYS];

/// A set-associative table of fixed size. A new counter replaces the oldest of its set.
pub(crate) struct LastKnownUsage {
    /// A shard is allocated when it is first written.
    shards: [Mutex<Box<[Set]>>; SHARDS],
    sets_per_shard: usize,
}

impl LastKnownUsage {
    /// Creates a table of about this many counters, of 80 bytes each.
    pub(crate) fn new(counters: usize) -> Self {
        let sets_per_shard = counters.div_ceil(WAYS * SHARDS).max(1);
        Self { shards: std::array::from_fn(|_| Mutex::default()), sets_per_shard }
    }

    /// Stores the usage in a response. Reports whether the counter was created although it should have been in the store.
    pub(crate) fn record(&self, id: u128, rates: &[Rate], seen: SeenUsage<'_>) -> bool {
        let SeenUsage { decisions, at, charged, created, epoch } = seen;
        let mut usage = KnownUsage { at, used: [0; MAX_KNOWN_RATES] };
        for ((to, rate), decision) in usage.used.iter_mut().zip(rates).zip(decisions) {
            *to = rate.used_after(decision);
        }
        let stays =
            rates.iter().zip(decisions).map(|(rate, decision)| rate.stays_until(decision, at, charged));
        let mut entry = Entry { id, usage, stays_until: stays.max().unwrap_or(0), epoch };
        let mut is_lost = false;
        self.replace(id, |before| {
            if let Some(before) = before.filter(|before| before.epoch == epoch) {
                if before.usage.at > at {
                    // A later response has been recorded already.
                    return before;
                }
                if created && before.usage.at < at && before.stays_until > at.saturating_add(LEAST_STAY) {
                    is_lost = true;
                } else {
                    entry.stays_until = entry.stays_until.max(before.stays_until);
                }
            }
            entry
        });
        is_lost
    }

    pub(crate) fn forget(&self, id: u128) {
        let mut shard = self.lock(id);
        let sets = shard.len().max(1);
        let Some(set) = shard.get_mut(id as u64 as usize % sets) else { return };
        for entry in set.iter_mut().filter(|entry| entry.is_some_and(|entry| entry.id == id)) {
            *entry = None;
        }
    }

    /// Notes that this process has refunded something, which may remove the counter.
    pub(crate) fn refunded(&self, id: u128) {
        let mut shard = self.lock(id);
        let sets = shard.len().max(1);
        let Some(set) = shard.get_mut(id as u64 as usize % sets) else { return };
        set.iter_mut().flatten().filter(|entry| entry.id == id).for_each(|entry| entry.stays_until = 0);
    }

    /// Stores what a flush has left in the store of each rate, and when, if that is known: the next outage begins with it.
    pub(crate) fn flushed(&self, id: u128, rates: &[FlushedRate]) {
        let (mut at, mut used) = (u64::MAX, [None; MAX_KNOWN_RATES]);
        for FlushedRate { rate, then } in rates {
            let Some((then, then_at)) = *then else { return };
            at = at.min(then_at);
            if let Some(known) = used.get_mut(*rate) {
                *known = Some(then);
            }
        }
        let usage = KnownUsage { at, used: [0; MAX_KNOWN_RATES] };
        let new = Entry { id, usage, stays_until: 0, epoch: NonZeroU32::MIN };
        self.replace(id, |before| {
            let mut entry = before.unwrap_or(new);
            if entry.usage.at > at {
                // A later response has been recorded already.
                return entry;
            }
            // A rate to which nothing was added counts as it did, and from when it did.
            let mut both = entry.usage.used.iter().zip(&used);
            if !both.any(|(known, then)| *known > 0 && then.is_none()) {
                entry.usage.at = at;
            }
            for (known, then) in entry.usage.used.iter_mut().zip(used) {
                *known = then.unwrap_or(*known);
            }
            entry
        });
    }

    /// Replaces the entry of a counter.
    fn replace(&self, id: u128, by: impl FnOnce(Option<Entry>) -> Entry) {
        let mut shard = self.lock(id);
        if shard.is_empty() {
            *shard = vec![[None; WAYS]; self.sets_per_shard].into_boxed_slice();
        }
        let sets = shard.len().max(1);
        let Some(set) = shard.get_mut(id as u64 as usize % sets) else { return };
        let same = set.iter().position(|entry| entry.is_some_and(|entry| entry.id == id));
        let way = same.or_else(|| (0..WAYS).min_by_key(|&n| set[n].map_or(0, |entry| entry.usage.at)));
        if let Some(way) = way {
            set[way] = Some(by(same.and(set[way])));
        }
    }

    pub(crate) fn get(&self, id: u128) -> Option<KnownUsage> {
        let shard = self.lock(id);
        let set = shard.get(id as u64 as usize % shard.len().max(1))?;
        set.iter().flatten().find(|entry| entry.id == id).map(|entry| entry.usage)
    }

    fn lock(&self, id: u128) -> MutexGuard<'_, Box<[Set]>> {
        self.shards[(id >> 124) as usize].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl std::fmt::Debug for LastKnownUsage {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("LastKnownUsage").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use sluice_limiter::{Algorithm, Period, Requests};

    use super::*;

    #[test]
    fn a_flush_changes_the_rates_that_it_has_added_to_and_nothing_that_is_newer() {
        let table = LastKnownUsage::new(64);
        let flushed = |rate, used, at| FlushedRate { rate, then: Some((used, at)) };
        let known = || table.get(1).map(|usage| (usage.used[0], usage.used[1], usage.at));
        table.flushed(1, &[flushed(0, 7, 100), flushed(1, 3, 100)]);
        assert_eq!(known(), Some((7, 3, 100)));
        table.flushed(1, &[flushed(1, 5, 200)]);
        assert_eq!(known(), Some((7, 5, 100)));
        table.flushed(1, &[flushed(0, 8, 300), flushed(1, 6, 300)]);
        table.flushed(1, &[flushed(0, 1, 299), flushed(1, 1, 299)]);
        assert_eq!(known(), Some((8, 6, 300)));
    }

    #[test]
    fn the_last_response_replaces_earlier_ones_and_the_oldest_counter_is_evicted() {
        let (requests, period) = (Requests::new(10).unwrap(), Period::from_millis(1000).unwrap());
        let rate = Rate::new(requests, period, Algorithm::SLIDING_WINDOW).unwrap();
        let decision = |remaining| Decision {
            admitted: true,
            limit: 10,
            period: 1000,
            remaining,
            reset: 0,
            retry_after: None,
            delay: 0,
        };
        let table = LastKnownUsage::new(64);
        let record = |id, remaining, at| {
            let decisions = &[decision(remaining)];
            let seen = SeenUsage { decisions, at, charged: true, created: false, epoch: NonZeroU32::MIN };
            assert!(!table.record(id, &[rate], seen));
        };
        record(1, 7, 5);
        record(1, 4, 6);
        assert_eq!(table.get(1), Some(KnownUsage { at: 6, used: [6, 0, 0, 0] }));
        for id in 2..6 {
            record(id, 0, 7);
        }
        assert_eq!(table.get(1), None);
        assert_eq!(table.get(5).map(|usage| usage.used[0]), Some(10));
        // A response that was overtaken by another one says nothing new.
        record(5, 3, 6);
        assert_eq!(table.get(5).map(|usage| usage.used[0]), Some(10));
    }

    #[test]
    fn an_entry_takes_as_much_memory_as_the_documentation_says() {
        assert_eq!(size_of::<Option<Entry>>(), 80);
    }
}
