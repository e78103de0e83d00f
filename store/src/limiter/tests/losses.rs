//! Counters that the store has lost, and those that only seem to be: by refunds, leases, resets, edits and clocks that step.

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use sluice_limiter::{Alignment, Burst, MaxWait};

use super::*;
use crate::plan::PlannedCounter;

/// Time for which the worlds exist.
const HOUR: Duration = Duration::from_secs(3600);

/// All algorithms whose counters are looked at, and the others.
fn algorithms() -> Vec<Algorithm> {
    vec![
        Algorithm::SLIDING_WINDOW,
        Algorithm::FIXED_WINDOW,
        Algorithm::FixedWindow(Alignment::Spread),
        Algorithm::FixedWindow(Alignment::FirstRequest),
        Algorithm::SlidingWindowLog { min_interval: 0 },
        Algorithm::TokenBucket { burst: Burst::new(4).unwrap() },
        Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(2_000).unwrap() },
    ]
}

/// A limit of a world, which can be edited, and the clients that it counts.
struct World {
    store: Arc<FakeStore>,
    limiters: Vec<Limiter<FakeStore>>,
    plans: Vec<Arc<LimitPlan>>,
    /// Charges that may be refunded, with the limiter that made them.
    charged: Vec<(usize, PlannedCounter, Reservation)>,
    /// Resets of which the limiters learn later: the limit, the client, and the time.
    resets: Vec<(usize, KeyHash, u64)>,
    random: StdRng,
}

impl World {
    fn new(seed: u64) -> Self {
        let store = FakeStore::new();
        store.start_clock();
        let limiters = (0..2).map(|_| limiter(&store)).collect();
        let mut world = Self {
            store,
            limiters,
            plans: Vec::new(),
            charged: Vec::new(),
            resets: Vec::new(),
            random: StdRng::seed_from_u64(seed),
        };
        for n in 0..algorithms().len() {
            let plan = world.new_plan(n);
            world.plans.push(plan);
        }
        world
    }

    /// Returns limit `n`, with random numbers.
    fn new_plan(&mut self, n: usize) -> Arc<LimitPlan> {
        let requests = Requests::new(self.random.random_range(1..9)).unwrap();
        let millis = [2_000, 20_000, 200_000][self.random.random_range(0..3usize)];
        let rate = Rate::new(requests, Period::from_millis(millis).unwrap(), algorithms()[n]).unwrap();
        let consistency = [Consistency::Strict, Consistency::Leased][self.random.random_range(0..2usize)];
        let spec = Arc::new(LimitSpec::new(format!("n/p/{n}"), vec![rate]));
        let corrected = self.random.random_bool(0.5);
        let replicas = Replicas::new(Replica::new(0, 2));
        Arc::new(LimitPlan::new(spec, consistency, OnStoreFailure::Share, corrected, replicas))
    }

    async fn step(&mut self) {
        let limit = self.random.random_range(0..self.plans.len());
        let process = self.random.random_range(0..self.limiters.len());
        let key = self.random.random_range(0..4);
        match self.random.random_range(0..100) {
            0..60 => {
                let mut counter = counter(&self.plans[limit], key);
                counter.cost = self.random.random_range(0..3);
                let outcome = self.limiters[process].check(std::slice::from_ref(&counter)).await.unwrap();
                self.charged.push((process, counter, outcome.reservations[0]));
            }
            60..75 => {
                if !self.charged.is_empty() {
                    let at = self.random.random_range(0..self.charged.len());
                    let (process, counter, reservation) = self.charged.swap_remove(at);
                    let delta = self.random.random_range(-2..3).max(-(counter.cost as i64));
                    self.limiters[process].settle(&counter, reservation, delta).await.unwrap();
                }
            }
            75..79 => {
                let (plan, key) = (self.plans[limit].clone(), KeyHash(key));
                let removed_at = self.limiters[process].reset_in_store(&plan, key).await.unwrap();
                self.resets.push((limit, key, removed_at));
            }
            79..84 => self.learn_of_resets(),
            84..87 => self.plans[limit] = self.new_plan(limit),
            87..88 => {
                let by = self.random.random_range(-40_000_000..40_000_000);
                self.store.step(by);
                // Each process sees the step, because it has other clients too.
                let other = plan("n/p/other", &[(1_000_000, DAY)], Consistency::Strict);
                for limiter in &self.limiters {
                    limiter.check(&[counter(&other, 9)]).await.unwrap();
                }
            }
            _ => {
                let micros = self.random.random_range(1..3_000_000);
                tokio::time::sleep(Duration::from_micros(micros)).await;
            }
        }
    }

    /// Tells all limiters of the resets, with the limits as they are now.
    fn learn_of_resets(&mut self) {
        for (limit, key, removed_at) in std::mem::take(&mut self.resets) {
            for limiter in &self.limiters {
                limiter.forget(&self.plans[limit..=limit], key, removed_at);
            }
        }
    }

    /// Returns how many counters were lost.
    fn lost(&self) -> u64 {
        self.limiters.iter().map(|limiter| limiter.metrics().unwrap().lost_counters).sum()
    }
}

#[tokio::test(start_paused = true)]
async fn nothing_is_counted_in_an_hour_of_refunds_leases_resets_edits_and_clocks_that_step() {
    for seed in 0..12 {
        let mut world = World::new(seed);
        let (began, mut pending_since) = (tokio::time::Instant::now(), tokio::time::Instant::now());
        while began.elapsed() < HOUR {
            world.step().await;
            if world.resets.is_empty() {
                pending_since = tokio::time::Instant::now();
            } else if pending_since.elapsed() > Duration::from_secs(15) {
                // All learn of a reset in time.
                world.learn_of_resets();
            }
        }
        assert_eq!(world.lost(), 0, "seed {seed}");
    }
}

#[tokio::test(start_paused = true)]
async fn each_lost_counter_of_a_window_or_a_log_is_counted_once() {
    // The first five of the algorithms.
    let counted = 5;
    for (n, algorithm) in algorithms().into_iter().enumerate() {
        let store = FakeStore::new();
        store.start_clock();
        let limiters = [limiter(&store), limiter(&store)];
        let rate =
            Rate::new(Requests::new(5).unwrap(), Period::from_millis(DAY).unwrap(), algorithm).unwrap();
        let spec = Arc::new(LimitSpec::new("n/p/l", vec![rate]));
        let replicas = Replicas::new(Replica::ONLY);
        let plan =
            Arc::new(LimitPlan::new(spec, Consistency::Strict, OnStoreFailure::Share, false, replicas));
        let check_all = async || {
            for limiter in &limiters {
                for key in 0..10 {
                    limiter.check(&[counter(&plan, key)]).await.unwrap();
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
            }
        };
        check_all().await;
        store.counters.lock().unwrap().retain(|(_, key), _| *key >= 7);
        check_all().await;
        let lost: u64 = limiters.iter().map(|limiter| limiter.metrics().unwrap().lost_counters).sum();
        // The first process to check a counter finds that it is new.
        assert_eq!(lost, if n < counted { 7 } else { 0 }, "{algorithm:?}");
        assert_eq!(
            limiters.iter().filter(|limiter| limiter.has_lost_counters()).count(),
            usize::from(n < counted)
        );
    }
}
