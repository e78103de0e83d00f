//! Who shares a policy, and how much of each of its limits is whose: pod i of p gets floor(N / p), and one more if its
//! rendezvous rank for the key is below N mod p. All shares of a key together are exactly N, and the extra ones of
//! different keys fall on different pods. Rendezvous: every pod has a score for a key, made of both; the rank is how many
//! pods score higher (Thaler and Ravishankar, "Using Name-Based Mappings to Increase Hit Rates", 1998). Pods are known by
//! their numbers, from 0, in an order that all of them are told.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};

use sluice_limiter::Rate;
use smallvec::SmallVec;
use tokio::time::Instant;

/// Which one this pod is of those that share a policy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Replica {
    index: u32,
    count: u32,
}

impl Replica {
    /// This pod alone.
    pub const ONLY: Self = Self { index: 0, count: 1 };

    /// Pod `index` of `count` that are numbered from 0. One that is not among them is added to them.
    #[must_use]
    pub fn new(index: u32, count: u32) -> Self {
        Self { index, count: count.max(index.saturating_add(1)) }
    }

    /// How many.
    #[must_use]
    pub fn count(self) -> u64 {
        u64::from(self.count)
    }

    /// This pod's rank for a key: how many pods come before it.
    pub(crate) fn rank(self, key: u128) -> u64 {
        let place = |pod: u32| (score(u64::from(pod), key), pod);
        let own = place(self.index);
        (0..self.count).filter(|&pod| place(pod) > own).count() as u64
    }

    /// This pod's share of `number`, given its rank.
    pub(crate) fn share(self, number: u64, rank: u64) -> u64 {
        number / self.count() + u64::from(rank < number % self.count())
    }
}

/// By whom each rate of a limit is shared.
pub(crate) type RateReplicas = SmallVec<[Replica; 2]>;

/// The pods that share a policy, as far as they are known: the plans of all its limits look here, and whoever hears of
/// pods that come and go says so here. A snapshot that takes another's place keeps it.
#[derive(Debug)]
pub struct Replicas {
    started: Instant,
    members: Mutex<Members>,
    /// How many there are now.
    count: AtomicU64,
}

impl Replicas {
    /// This pod alone, until something else is said.
    #[must_use]
    pub fn alone() -> Arc<Self> {
        Self::new(Replica::ONLY)
    }

    /// These.
    #[must_use]
    pub fn new(live: Replica) -> Arc<Self> {
        Arc::new(Self {
            started: Instant::now(),
            members: Mutex::new(Members::new(live)),
            count: AtomicU64::new(live.count()),
        })
    }

    /// From now on it is these.
    pub fn set(&self, live: Replica) {
        self.count.store(live.count(), Relaxed);
        self.lock().set(self.now(), live);
    }

    /// How many there are now.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.count.load(Relaxed)
    }

    /// Of each rate those of the largest count within the last period of it.
    pub(crate) fn largest(&self, rates: &[Rate]) -> RateReplicas {
        let (members, now) = (self.lock(), self.now());
        rates.iter().map(|rate| members.largest(now, rate.period.micros())).collect()
    }

    fn now(&self) -> u64 {
        self.started.elapsed().as_micros() as u64
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Members> {
        // Members are whole between any two statements that can panic.
        self.members.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn score(pod: u64, key: u128) -> u64 {
    mix(pod ^ mix((key >> 64) as u64 ^ mix(key as u64)))
}

/// The finalizer of splitmix64 (Steele, Lea and Flood, 2014): the same in every pod and release.
fn mix(n: u64) -> u64 {
    let n = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let n = (n ^ (n >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let n = (n ^ (n >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    n ^ (n >> 31)
}

/// How many changes are kept. With more, an older and larger count is taken for longer.
const KEPT: usize = 64;

/// What was live, and when. A pod that has gone has used its share of the period in which it was there, so the largest
/// count of the last period is what shares are cut by.
#[derive(Debug)]
struct Members {
    /// Since when, and who; counts fall from one to the next, as a smaller one that a larger one follows is never the
    /// largest of a time that ends now.
    changes: VecDeque<(u64, Replica)>,
}

impl Members {
    fn new(live: Replica) -> Self {
        Self { changes: VecDeque::from([(0, live)]) }
    }

    /// From `now` on it is these.
    fn set(&mut self, now: u64, live: Replica) {
        let mut since = now;
        // One that is no larger ends the larger one before it when it began itself.
        while let Some((began, _)) = self.changes.pop_back_if(|(_, last)| last.count() <= live.count()) {
            since = began;
        }
        if self.changes.len() == KEPT {
            self.changes.remove(1);
        }
        self.changes.push_back((since, live));
    }

    /// The largest within the last `period` microseconds.
    fn largest(&self, now: u64, period: u64) -> Replica {
        let begin = now.saturating_sub(period);
        // One was in effect until the next began; the first that still was is the largest.
        let ended = self.changes.iter().skip(1).take_while(|(since, _)| *since <= begin).count();
        self.changes.get(ended).map_or(Replica::ONLY, |&(_, live)| live)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn shares_of_all_pods_are_the_whole_number(
            pods in 1u32..40, key: u128, number in 0u64..1 << 40,
        ) {
            let lives = (0..pods).map(|pod| Replica::new(pod, pods));
            let sum: u64 = lives.map(|live| live.share(number, live.rank(key))).sum();
            prop_assert_eq!(sum, number);
        }

        /// Compared with looking at every instant.
        #[test]
        fn the_largest_count_of_the_last_period_is_known(
            changes in proptest::collection::vec((1u64..50, 1u32..30), 1..30), period in 0u64..300, later in 0u64..100,
        ) {
            let (mut members, mut now, mut at) = (Members::new(Replica::ONLY), 0, vec![]);
            for (step, count) in changes {
                members.set(now, Replica::new(0, count));
                at.extend(std::iter::repeat_n(u64::from(count), step as usize));
                now += step;
            }
            at.extend(std::iter::repeat_n(*at.last().unwrap(), later as usize + 1));
            let now = at.len() as u64 - 1;
            let first = now.saturating_sub(period) as usize;
            let largest = *at[first..].iter().max().unwrap();
            let found = members.largest(now, period).count();
            // What ended at the very beginning of the period may count or not.
            let touching = at[first.saturating_sub(1)..].iter().copied().max().unwrap();
            prop_assert!(found == largest || found == touching, "{found} for {largest}");
        }
    }

    #[test]
    fn extra_ones_fall_on_all_pods_alike() {
        let lives: Vec<_> = (0..10).map(|n| Replica::new(n, 10)).collect();
        for live in &lives {
            let extra = (0..10_000u128).filter(|&key| live.rank(key.wrapping_mul(0x9e37_79b9_7f4a_7c15)) < 3);
            let extra = extra.count();
            assert!((2_700..3_300).contains(&extra), "{extra} of 10000 keys");
        }
    }

    #[test]
    fn many_changes_err_towards_a_larger_count() {
        let mut members = Members::new(Replica::ONLY);
        for n in 0..500u32 {
            members.set(u64::from(n) * 10, Replica::new(0, 1000 - n));
        }
        assert!(members.changes.len() <= KEPT);
        assert_eq!(members.largest(5_000, 5_000).count(), 1000);
        assert!(members.largest(5_000, 100).count() >= 510);
        assert_eq!(members.largest(500_000, 100).count(), 501);
    }
}
