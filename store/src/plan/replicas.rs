//! The replicas of a policy over time.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use sluice_limiter::Rate;
use smallvec::SmallVec;
use tokio::time::Instant;

use super::replica::Replica;

/// For each rate of a limit, the replicas that share it.
pub(crate) type RateReplicas = SmallVec<[Replica; 2]>;

/// The replicas of a policy, now and in the recent past. The plans of all its limits share one value, which
/// is updated when replicas come and go. A new snapshot of the policy keeps it.
#[derive(Debug)]
pub struct Replicas {
    started: Instant,
    history: Mutex<History>,
    /// Number of replicas now.
    count: AtomicU64,
}

impl Replicas {
    /// Starts with this replica alone.
    #[must_use]
    pub fn alone() -> Arc<Self> {
        Self::new(Replica::ONLY)
    }

    /// Starts with these replicas.
    #[must_use]
    pub fn new(replica: Replica) -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            history: Mutex::new(History::new(replica)),
            count: AtomicU64::new(replica.count()),
        })
    }

    /// Replaces the index of this replica and the count.
    pub fn set(&self, replica: Replica) {
        self.count.store(replica.count(), Relaxed);
        self.lock().set(self.now(), replica);
    }

    /// Returns the number of replicas now.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Returns, for each rate, the replicas at the time of the largest count within the rate's last period.
    pub(crate) fn largest(&self, rates: &[Rate]) -> RateReplicas {
        let (history, now) = (self.lock(), self.now());
        rates.iter().map(|rate| history.largest(now, rate.period.micros())).collect()
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    fn lock(&self) -> MutexGuard<'_, History> {
        // The history is consistent between any two statements that can panic.
        self.history.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Number of changes that are kept. With more of them, an older and larger count applies for longer.
const MAX_CHANGES: usize = 64;

/// Past replica counts. A replica that has gone may have used its share of the current period, so shares are
/// computed from the largest count within a period.
#[derive(Debug)]
struct History {
    /// The replicas, and the time since which they apply, oldest first. Counts decrease from one to the next:
    /// a smaller count before a larger one is never the largest of a period that ends now.
    changes: VecDeque<(u64, Replica)>,
}

impl History {
    fn new(replica: Replica) -> Self {
        Self { changes: VecDeque::from([(0, replica)]) }
    }

    fn set(&mut self, now: u64, replica: Replica) {
        let mut since = now;
        // A count that the new one reaches or exceeds is dropped. The new one applies from the time of the
        // dropped one, at which the larger count before it ended.
        while let Some((began, _)) = self.changes.pop_back_if(|(_, last)| last.count() <= replica.count()) {
            since = began;
        }
        if self.changes.len() == MAX_CHANGES {
            self.changes.remove(1);
        }
        self.changes.push_back((since, replica));
    }

    /// Returns the replicas at the time of the largest count within the last `period` microseconds.
    fn largest(&self, now: u64, period: u64) -> Replica {
        let begin = now.saturating_sub(period);
        // An entry applies until the next one begins. The first entry that still applied in the period is the
        // largest.
        let ended = self.changes.iter().skip(1).take_while(|(since, _)| *since <= begin).count();
        self.changes.get(ended).map_or(Replica::ONLY, |&(_, replica)| replica)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares the history with a list of the count at every instant.
        #[test]
        fn history_returns_the_largest_count_of_the_last_period(
            changes in proptest::collection::vec((1u64..50, 1u32..30), 1..30), period in 0u64..300, later in 0u64..100,
        ) {
            let (mut history, mut now, mut at) = (History::new(Replica::ONLY), 0, vec![]);
            for (step, count) in changes {
                history.set(now, Replica::new(0, count));
                at.extend(std::iter::repeat_n(u64::from(count), step as usize));
                now += step;
            }
            at.extend(std::iter::repeat_n(*at.last().unwrap(), later as usize + 1));
            let now = at.len() as u64 - 1;
            let first = now.saturating_sub(period) as usize;
            let largest = *at[first..].iter().max().unwrap();
            let found = history.largest(now, period).count();
            // A count that ended at the first instant of the period may be included or not.
            let touching = at[first.saturating_sub(1)..].iter().copied().max().unwrap();
            prop_assert!(found == largest || found == touching, "{found} instead of {largest}");
        }
    }

    #[test]
    fn a_long_history_errs_towards_a_larger_count() {
        let mut history = History::new(Replica::ONLY);
        for n in 0..500u32 {
            history.set(u64::from(n) * 10, Replica::new(0, 1000 - n));
        }
        assert!(history.changes.len() <= MAX_CHANGES);
        assert_eq!(history.largest(5_000, 5_000).count(), 1000);
        assert!(history.largest(5_000, 100).count() >= 510);
        assert_eq!(history.largest(500_000, 100).count(), 501);
    }
}
