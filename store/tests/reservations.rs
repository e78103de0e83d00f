//! Reservations, in memory and in Redis: never more is reserved than a limit has, and each is settled once, or stays charged.

use std::sync::Arc;
use std::time::Duration;

use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use sluice_limiter::{Algorithm, Burst, Holder, Period, SubWindows};
use sluice_store::{
    Clock, Consistency, KeyHash, LimitPlan, LimitSpec, Limiter, LimiterOptions, Lookup, MemoryStore,
    OnStoreFailure, PlannedCounter, RedisStore, Replica, Replicas, Settlement, Taking,
};

use crate::checks::{healthy, patient, rate};
use crate::support::Redis;

crate::servers::pass_with_other_servers!();

/// The number of a limit.
const QUOTA: u64 = 1000;
/// A year, so that no window ends during a test in real time.
const YEAR: u64 = 8760 * 3_600_000;
/// Time for which reservations are open, in milliseconds.
const LASTS: u64 = 60_000;

/// One step of those who share a counter.
#[derive(Debug, Clone)]
enum Step {
    Reserve(u64),
    /// Settles the reservation with this position, modulo their number, whether it was settled or not.
    Settle(usize, u64),
    SettleOldest(u64),
    /// Lets so many milliseconds pass, where the clock is not real.
    Pass(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (1u64..400).prop_map(Step::Reserve),
        3 => (any::<usize>(), 0u64..500).prop_map(|(which, used)| Step::Settle(which, used)),
        1 => (0u64..500).prop_map(Step::SettleOldest),
        1 => (0u64..40_000).prop_map(Step::Pass),
    ];
    proptest::collection::vec(step, 1..40)
}

/// A counter with its ledger.
struct Counter {
    limiter: Limiter,
    plan: Arc<LimitPlan>,
    key: KeyHash,
    clock: Option<Clock>,
}

/// A reservation, as a test remembers it.
#[derive(Debug, Clone, Copy)]
struct Made {
    id: Holder,
    cost: u64,
    charged: u64,
    expires: u64,
    is_open: bool,
}

impl Counter {
    fn new(limiter: Limiter, name: &str, algorithm: Algorithm, period: u64, clock: Option<Clock>) -> Self {
        let spec = Arc::new(LimitSpec::new(format!("ns/p/{name}"), vec![rate(QUOTA, period, algorithm)]));
        let replicas = Replicas::new(Replica::new(0, 1));
        let plan = LimitPlan::new(spec, Consistency::Strict, OnStoreFailure::Share, true, replicas);
        Self { limiter, plan: Arc::new(plan), key: KeyHash(rand::random()), clock }
    }

    fn ledger(&self, id: Holder) -> LimitPlan {
        self.plan.ledger(id, Period::from_millis(LASTS).unwrap())
    }

    fn planned(&self, cost: u64) -> PlannedCounter {
        PlannedCounter { limit: self.plan.clone(), key: self.key, cost }
    }

    async fn reserve(&self, id: Holder, cost: u64) -> Option<u64> {
        let ledger = PlannedCounter { limit: Arc::new(self.ledger(id)), ..self.planned(cost) };
        let outcome = self.limiter.check(&[self.planned(cost), ledger]).await.unwrap();
        assert_eq!(outcome.failure, None);
        outcome.response.admitted.then_some(outcome.response.at)
    }

    /// Returns what was settled: its cost and the time of its charge.
    async fn settle(&self, id: Option<Holder>, used: u64) -> Option<(u64, u64)> {
        let ledger = self.ledger(Holder::FIRST).spec.clone();
        let lookup = Lookup { ledger: ledger.clone(), key: self.key, id };
        let found = self.limiter.find(lookup).await.unwrap()?;
        assert!(id.is_none_or(|id| id == found.id));
        let correction = Settlement {
            limit: self.plan.spec.clone(),
            key: self.key,
            charged: found.charged,
            delta: used as i64 - found.cost as i64,
            overflowed: false,
            least: 0,
        };
        let is_taken = self.limiter.take(&self.plan, Taking { ledger, id: found.id, correction }).await;
        // Another one may have been quicker.
        is_taken.unwrap().then_some((found.cost, found.charged))
    }

    async fn left(&self) -> u64 {
        self.limiter.peek(&self.plan, self.key).await.unwrap().unwrap()[0].remaining
    }

    async fn open(&self) -> u64 {
        let ledger = Arc::new(self.ledger(Holder::FIRST));
        let looked = self.limiter.peek(&ledger, self.key).await.unwrap().unwrap();
        looked[0].limit - looked[0].remaining
    }

    fn now(&self) -> u64 {
        self.clock.as_ref().map_or(0, Clock::now)
    }

    /// Returns what can be used beyond a cost: a log keeps no more instants than its number, and a bucket has no more debt.
    fn usable(&self, used: u64, cost: u64) -> u64 {
        match self.plan.spec.rates[0].algorithm {
            Algorithm::SlidingWindowLog { .. } | Algorithm::TokenBucket { .. } => used.min(cost),
            _ => used,
        }
    }

    /// Makes all steps, and compares the counter with a model. The period is as long as the test, unless the clock is not real.
    async fn follow(&self, steps: &[Step]) {
        let mut all: Vec<Made> = Vec::new();
        // What was settled.
        let mut used = 0u64;
        for (n, step) in steps.iter().enumerate() {
            let now = self.now();
            all.iter_mut().filter(|one| one.expires <= now / 1000).for_each(|one| one.is_open = false);
            match *step {
                Step::Reserve(cost) => {
                    let id = Holder::new(n as u64 + 1).unwrap();
                    let left = self.left().await;
                    let charged = self.reserve(id, cost).await;
                    assert_eq!(charged.is_some(), cost <= left, "{n}: {cost} of {left}");
                    let expires = if self.clock.is_some() { now / 1000 + LASTS } else { u64::MAX };
                    let made = |charged| Made { id, cost, charged, expires, is_open: true };
                    all.extend(charged.map(made));
                    used += if charged.is_some() { cost } else { 0 };
                }
                Step::Settle(which, cost) => {
                    let count = all.len().max(1);
                    let Some(one) = all.get_mut(which % count) else { continue };
                    let cost = self.usable(cost, one.cost);
                    let taken = self.settle(Some(one.id), cost).await;
                    assert_eq!(taken, one.is_open.then_some((one.cost, one.charged)), "{n}");
                    used = if one.is_open { used - one.cost + cost } else { used };
                    one.is_open = false;
                }
                Step::SettleOldest(cost) => {
                    let oldest = all.iter().find(|one| one.is_open).map_or(0, |one| one.cost);
                    let cost = self.usable(cost, oldest);
                    let taken = self.settle(None, cost).await;
                    let oldest = all.iter_mut().find(|one| one.is_open);
                    assert_eq!(taken, oldest.as_ref().map(|one| (one.cost, one.charged)), "{n}");
                    if let Some(one) = oldest {
                        used = used - one.cost + cost;
                        one.is_open = false;
                    }
                }
                Step::Pass(millis) => {
                    self.clock.iter().for_each(|clock| clock.advance_micros(millis * 1000));
                    let now = self.now() / 1000;
                    all.iter_mut().filter(|one| one.expires <= now).for_each(|one| one.is_open = false);
                }
            }
            let open: u64 = all.iter().filter(|one| one.is_open).map(|one| one.cost).sum();
            assert_eq!(self.open().await, open, "{n} {step:?}");
            assert!(open <= QUOTA, "{n}: more is reserved than there is");
            assert_eq!(
                self.left().await,
                QUOTA.saturating_sub(used),
                "{n} {step:?} of {:?}",
                self.plan.spec.rates[0].algorithm
            );
        }
    }
}

fn algorithms() -> Vec<Algorithm> {
    vec![
        Algorithm::FIXED_WINDOW,
        Algorithm::SLIDING_WINDOW,
        Algorithm::SlidingWindowCounter {
            sub_windows: SubWindows::new(5).unwrap(),
            bound: sluice_limiter::Bound::Guaranteed,
        },
        Algorithm::SlidingWindowLog { min_interval: 0 },
        Algorithm::TokenBucket { burst: Burst::new(QUOTA).unwrap() },
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn each_is_settled_once_or_stays_charged_in_memory(steps in steps()) {
        for algorithm in algorithms() {
            // A bucket refills with the time.
            let is_bucket = matches!(algorithm, Algorithm::TokenBucket { .. });
            let steps: Vec<_> = steps.iter().filter(|step| !is_bucket || !matches!(step, Step::Pass(_))).cloned().collect();
            let clock = Clock::manual(0);
            clock.advance_micros(1_700_000_000_000_000);
            let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
            let _entered = runtime.enter();
            let limiter = Limiter::in_memory(MemoryStore::new(1000, clock.clone()));
            let counter = Counter::new(limiter, "memory", algorithm, YEAR, Some(clock));
            runtime.block_on(counter.follow(&steps));
        }
    }
}

async fn in_redis(redis: &Redis) -> Limiter {
    let store = Arc::new(RedisStore::start(patient(&redis.url())).unwrap());
    healthy(&store).await;
    let options = LimiterOptions { latency_budget: Duration::from_secs(10), ..LimiterOptions::default() };
    Limiter::in_redis(store, &options, None)
}

#[tokio::test(flavor = "multi_thread")]
async fn each_is_settled_once_or_stays_charged_in_redis() {
    let redis = Redis::start(&[]);
    let mut runner = proptest::test_runner::TestRunner::deterministic();
    for (n, algorithm) in algorithms().into_iter().enumerate() {
        // A bucket of a year refills one within nine hours.
        for _ in 0..8 {
            let steps = steps().new_tree(&mut runner).unwrap().current();
            let counter = Counter::new(in_redis(&redis).await, &format!("redis{n}"), algorithm, YEAR, None);
            counter.follow(&steps).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_processes_reserve_no_more_than_there_is_and_settle_each_once() {
    let redis = Redis::start(&[]);
    let first = Counter::new(in_redis(&redis).await, "shared", Algorithm::FIXED_WINDOW, YEAR, None);
    let second =
        Counter { limiter: in_redis(&redis).await, plan: first.plan.clone(), key: first.key, clock: None };
    let both = [Arc::new(first), Arc::new(second)];
    let reserve = |n: usize| {
        let counter = both[n % 2].clone();
        tokio::spawn(async move {
            let id = Holder::new(n as u64 + 1).unwrap();
            counter.reserve(id, 100).await.map(|_| id)
        })
    };
    let made = futures::future::join_all((0..50).map(reserve)).await;
    let ids: Vec<_> = made.into_iter().filter_map(Result::unwrap).collect();
    assert_eq!(ids.len() as u64, QUOTA / 100);
    assert_eq!(both[0].open().await, QUOTA);
    let settle = |(n, id): (usize, &Holder)| {
        let (counter, id) = (both[n % 2].clone(), *id);
        tokio::spawn(async move { counter.settle(Some(id), 30).await })
    };
    let twice = ids.iter().chain(&ids).chain(&ids).enumerate().map(settle);
    let settled = futures::future::join_all(twice).await;
    assert_eq!(settled.into_iter().filter(|one| one.as_ref().unwrap().is_some()).count(), ids.len());
    assert_eq!((both[1].left().await, both[1].open().await), (QUOTA - 30 * ids.len() as u64, 0));
}
