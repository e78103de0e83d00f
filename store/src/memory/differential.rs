//! Tests of the memory store against its definition: `decide` and `settle` on a plain map, for limits of all
//! algorithms and their edits, checks of several counters, and clocks that step.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use proptest::collection::vec;
use proptest::prelude::*;
use sluice_limiter::{
    Algorithm, Alignment, Bound, Burst, MAX_COUNT, MAX_PERIOD_MS, MaxWait, Period, Rate, Requests, Soft,
    SubWindows, WarmUp,
};

use super::MemoryStore;
use super::store::shard_of;
use crate::check::{
    CheckResponse, Counter, KeyHash, LimitSpec, MAX_RATES, Records, Settlement, decide_as, settle,
};
use crate::clock::Clock;

const DAY: i64 = 86_400_000_000;
/// The start of an hour.
const START: u64 = 1_750_000_000_000_000 / 3_600_000_000 * 3_600_000_000;

fn any_algorithm() -> impl Strategy<Value = Algorithm> {
    let bound = prop_oneof![Just(Bound::Estimate), Just(Bound::Guaranteed)];
    let sliding = (prop_oneof![3 => Just(1u64), 1 => 1u64..=60], bound).prop_map(|(sub_windows, bound)| {
        Algorithm::SlidingWindowCounter { sub_windows: SubWindows::new(sub_windows).unwrap(), bound }
    });
    let alignment = prop_oneof![2 => Just(Alignment::Clock), 1 => Just(Alignment::Spread), 1 => Just(Alignment::FirstRequest)];
    let log = prop_oneof![Just(0u64), 0u64..2000]
        .prop_map(|min_interval| Algorithm::SlidingWindowLog { min_interval });
    prop_oneof![
        4 => sliding,
        3 => alignment.prop_map(Algorithm::FixedWindow),
        1 => log,
        2 => (1u64..30).prop_map(|burst| Algorithm::TokenBucket { burst: Burst::new(burst).unwrap() }),
        2 => (1u64..30).prop_map(|burst| Algorithm::Gcra { burst: Burst::new(burst).unwrap() }),
        1 => (0u64..5000).prop_map(|wait| Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(wait).unwrap() }),
        1 => (1u64..90_000).prop_map(|lasts| Algorithm::Block { lasts: Period::from_millis(lasts).unwrap() }),
        1 => (1u64..5000, 2u64..10).prop_map(|(warm, cold)| Algorithm::WarmUp(WarmUp::new(warm, cold).unwrap())),
    ]
}

/// Where the numbers do not form a valid rate, uses the sliding window, which accepts all numbers.
fn any_rate() -> impl Strategy<Value = Rate> {
    let requests =
        prop_oneof![6 => 0u64..12, 1 => Just(1u64 << 31), 1 => 0..=MAX_COUNT, 1 => Just(MAX_COUNT)];
    let period = prop_oneof![
        2 => Just(1_000u64),
        2 => Just(60_000),
        1 => 1u64..50,
        1 => (1u64..1000).prop_map(|n| n * 60),
        1 => 1..=MAX_PERIOD_MS,
        1 => Just(MAX_PERIOD_MS),
    ];
    let soft = proptest::option::weighted(0.2, (1u64..200, 1u64..100_000));
    let counts_denied = proptest::bool::weighted(0.2);
    (requests, period, any_algorithm(), soft, counts_denied).prop_map(
        |(requests, period, algorithm, soft, counts)| {
            let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(period).unwrap());
            let rate = Rate::new(requests, period, algorithm);
            let rate =
                rate.unwrap_or_else(|_| Rate::new(requests, period, Algorithm::SLIDING_WINDOW).unwrap());
            let soft = soft.map(|(percent, millis)| Soft::new(percent, millis).unwrap());
            let rate = soft.and_then(|soft| rate.with_soft(soft).ok()).unwrap_or(rate);
            if counts || rate.counts_only_own_denials() {
                rate.counting_denied().unwrap_or(rate)
            } else {
                rate
            }
        },
    )
}

fn any_cost() -> impl Strategy<Value = u64> {
    prop_oneof![12 => Just(1u64), 3 => 0u64..8, 1 => 0..=1u64 << 32, 1 => any::<u64>(), 1 => Just(u64::MAX)]
}

/// Three versions of a limit's rates: the second changes only numbers, the third is unrelated.
fn any_versions() -> impl Strategy<Value = Vec<Vec<Rate>>> {
    let rates = || vec(any_rate(), 1..4);
    let numbers = vec(prop_oneof![4 => 1u64..12, 1 => 0..=MAX_COUNT], 3);
    (rates(), numbers, rates()).prop_map(|(first, numbers, unrelated)| {
        let edited = first.iter().zip(numbers).map(|(rate, requests)| {
            let edited = Rate { requests: Requests::new(requests).unwrap(), ..*rate };
            edited.validated().unwrap_or(*rate)
        });
        vec![first.clone(), edited.collect(), unrelated]
    })
}

#[derive(Debug, Clone)]
enum Step {
    /// Checks counters, each given by limit, key and cost.
    Check(Vec<(usize, u128, u64)>),
    /// Checks one counter a number of times, this many microseconds apart.
    Repeat((usize, u128, u64), usize, u64),
    /// Changes a limit to one of its versions.
    Edit(usize, usize),
    /// Moves the clock by microseconds, forward or back.
    Wait(i64),
    /// Corrects one of the charges by an amount.
    Settle(usize, i64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let counter = || (0usize..4, 0u128..3, any_cost());
    let wait = prop_oneof![
        4 => 0i64..2_000_000,
        2 => 0i64..200_000_000,
        1 => prop_oneof![Just(1_000i64), Just(1_000_000), Just(60_000_000), Just(999), Just(1)],
        1 => -2_000_000i64..0,
        1 => prop_oneof![Just(DAY), Just(-DAY), -DAY..DAY],
    ];
    let delta = prop_oneof![3 => -5i64..5, 1 => any::<i64>()];
    prop_oneof![
        8 => vec(counter(), 1..2).prop_map(Step::Check),
        4 => vec(counter(), 1..6).prop_map(Step::Check),
        4 => (counter(), 1usize..30, prop_oneof![Just(0u64), 0u64..400])
            .prop_map(|(counter, times, apart)| Step::Repeat(counter, times, apart)),
        1 => (0usize..4, 0usize..3).prop_map(|(limit, version)| Step::Edit(limit, version)),
        5 => wait.prop_map(Step::Wait),
        2 => (any::<usize>(), delta).prop_map(|(charge, delta)| Step::Settle(charge, delta)),
    ]
}

/// The definition of the store.
#[derive(Default)]
struct Model {
    counters: HashMap<(String, u128), Records>,
}

impl Model {
    fn take(&mut self, limit: &LimitSpec, key: KeyHash) -> (bool, Records, Records) {
        let stored = self.counters.remove(&(limit.scope.clone(), key.0));
        let exists = stored.is_some();
        let is_own =
            |record: &sluice_limiter::Record| limit.rates.iter().any(|rate| rate.tag() == record.tag);
        let (own, others) = stored.unwrap_or_default().into_iter().partition(is_own);
        (exists, own, others)
    }

    fn put(&mut self, limit: &LimitSpec, key: KeyHash, mut own: Records, others: Records, now: u64) {
        let left = others.into_iter().filter(|record| record.expires_at() > now / 1000);
        own.extend(left.take(MAX_RATES));
        self.counters.insert((limit.scope.clone(), key.0), own);
    }

    fn check(&mut self, check: &[Counter], now: u64) -> CheckResponse {
        self.decide(check, now, false)
    }

    fn decide(&mut self, check: &[Counter], now: u64, is_forced: bool) -> CheckResponse {
        let taken: Vec<_> = check.iter().map(|counter| self.take(&counter.limit, counter.key)).collect();
        let all = |(_, own, others): &(bool, Records, Records)| own.iter().chain(others).cloned().collect();
        let mut records: Vec<Records> = taken.iter().map(all).collect();
        let response = decide_as(check, &mut records, now, is_forced, &[]);
        for ((counter, own), (exists, _, others)) in check.iter().zip(records).zip(taken) {
            let charged =
                if response.admitted { counter.cost > 0 } else { counter.limit.counted_denial(&own) };
            if charged || exists {
                self.put(&counter.limit, counter.key, own, others, now);
            }
        }
        response
    }

    /// Removes a counter if it has expired.
    fn remove_expired(&mut self, counter: &Counter, now: u64) -> bool {
        let name = (counter.limit.scope.clone(), counter.key.0);
        let has_expired = |records: &Records| records.iter().all(|record| record.expires_at() <= now / 1000);
        let expired = self.counters.get(&name).is_some_and(has_expired);
        expired && self.counters.remove(&name).is_some()
    }

    fn settle(&mut self, settlement: &Settlement, now: u64) {
        if let Some(counter) = settlement.more() {
            self.decide(&[counter], now, true);
            return;
        }
        let (exists, mut own, others) = self.take(&settlement.limit, settlement.key);
        if exists {
            settle(settlement, &mut own, now);
            self.put(&settlement.limit, settlement.key, own, others, now);
        }
    }
}

impl MemoryStore {
    fn stored_records(&self, limit: &LimitSpec, key: KeyHash) -> Option<Records> {
        let id = limit.prepared.id(key.0);
        self.lock(shard_of(id)).peek(id)
    }

    /// Reports whether a check of this counter may sweep.
    fn may_sweep(&self, counter: &Counter) -> bool {
        let number = shard_of(counter.limit.prepared.id(counter.key.0));
        self.hot[number].is_live() || self.lock_without_hot(number).is_nearly_due()
    }

    /// Sweeps the shard of a counter until the counter is removed.
    fn sweep_until_removed(&self, counter: &Counter, now: u64) {
        let id = counter.limit.prepared.id(counter.key.0);
        let mut shard = self.lock(shard_of(id));
        while shard.peek(id).is_some() {
            self.keys.fetch_sub(shard.sweep(now), Ordering::Relaxed);
        }
    }
}

/// Removes the expired counters of a check from the store and the model, if the check may sweep. Otherwise a
/// counter that the check sweeps and creates again would go unnoticed.
fn remove_expired(store: &MemoryStore, model: &mut Model, check: &[Counter], now: u64) {
    if check.iter().any(|counter| store.may_sweep(counter)) {
        for counter in check {
            if model.remove_expired(counter, now) {
                store.sweep_until_removed(counter, now);
            }
        }
    }
}

fn sorted(records: &Records) -> Records {
    let mut records = records.clone();
    records.sort_by_key(|record| record.tag);
    records
}

/// Spreads small numbers over all bits as a hash would.
fn hashed(key: u128) -> KeyHash {
    KeyHash((key + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(500))]

    #[test]
    fn store_decides_as_the_definition_does(
        versions in vec(any_versions(), 4), one in vec(any::<bool>(), 4), steps in vec(any_step(), 1..120),
    ) {
        let limits: Vec<Vec<Arc<LimitSpec>>> = versions.into_iter().zip(&one).enumerate().map(|(n, (versions, one))| {
            let spec = |mut rates: Vec<Rate>| {
                // Half of the limits have one rate, and no limit has two rates with the same tag.
                rates.truncate(if *one { 1 } else { 3 });
                rates.sort_by_key(Rate::tag);
                rates.dedup_by_key(|rate| rate.tag());
                Arc::new(LimitSpec::new(format!("ns/p/{n}"), rates))
            };
            versions.into_iter().map(spec).collect()
        }).collect();
        let mut version = [0; 4];
        let mut now = START;
        let store = MemoryStore::new(1000, Clock::manual(0));
        let mut model = Model::default();
        let mut charges: Vec<(Counter, u64)> = Vec::new();
        for step in steps {
            match step {
                Step::Wait(micros) => now = now.saturating_add_signed(micros),
                Step::Edit(limit, to) => version[limit] = to,
                Step::Check(mut counters) => {
                    counters.sort_by_key(|counter| (counter.0, counter.1));
                    counters.dedup_by_key(|counter| (counter.0, counter.1));
                    let counter = |(limit, key, cost): (usize, u128, u64)| Counter {
                        limit: limits[limit][version[limit]].clone(), key: hashed(key), cost,
                    };
                    let check: Vec<_> = counters.into_iter().map(counter).collect();
                    remove_expired(&store, &mut model, &check, now);
                    let response = store.check_at(&check, now);
                    prop_assert_eq!(&response, &model.check(&check, now), "{:?} at {}", check, now);
                    if response.admitted {
                        charges.extend(check.into_iter().map(|counter| (counter, now)));
                    }
                }
                // Nothing reads the counter in between, so it becomes hot.
                Step::Repeat((limit, key, cost), times, apart) => for _ in 0..times {
                    let check = [Counter { limit: limits[limit][version[limit]].clone(), key: hashed(key), cost }];
                    remove_expired(&store, &mut model, &check, now);
                    let response = store.check_at(&check, now);
                    prop_assert_eq!(&response, &model.check(&check, now), "{:?} at {}", check, now);
                    let [counter] = check;
                    charges.extend(response.admitted.then_some((counter, now)));
                    now += apart;
                },
                Step::Settle(charge, delta) => if let Some(n) = charge.checked_rem(charges.len()) {
                    let (Counter { limit, key, .. }, charged) = charges.swap_remove(n);
                    let settlement = Settlement { limit, key, charged, delta, overflowed: false, least: 0 };
                    // A charge that becomes larger is a check.
                    if let Some(counter) = settlement.more() {
                        remove_expired(&store, &mut model, &[counter], now);
                    }
                    store.settle_at(&settlement, now);
                    model.settle(&settlement, now);
                }
            }
            // The store has only removed counters that had expired.
            let mut removed = Vec::new();
            for ((scope, key), records) in &model.counters {
                let limit = &limits[scope.strip_prefix("ns/p/").unwrap().parse::<usize>().unwrap()][0];
                match store.stored_records(limit, KeyHash(*key)) {
                    Some(stored) => prop_assert_eq!(sorted(&stored), sorted(records), "{} {}", scope, key),
                    None => {
                        prop_assert!(records.iter().all(|record| record.expires_at() <= now / 1000));
                        removed.push((scope.clone(), *key));
                    }
                }
            }
            for key in removed {
                model.counters.remove(&key);
            }
            prop_assert_eq!(store.keys(), model.counters.len());
        }
    }
}

#[test]
fn store_decides_on_the_largest_and_the_smallest_numbers() {
    let algorithms = [
        Algorithm::SLIDING_WINDOW,
        Algorithm::SlidingWindowCounter { sub_windows: SubWindows::ONE, bound: Bound::Guaranteed },
        Algorithm::FixedWindow(Alignment::Clock),
        Algorithm::FixedWindow(Alignment::Spread),
        Algorithm::FixedWindow(Alignment::FirstRequest),
        Algorithm::TokenBucket { burst: Burst::new(1).unwrap() },
        Algorithm::Gcra { burst: Burst::new(1).unwrap() },
        Algorithm::LeakyBucket { max_wait: MaxWait::from_millis(MAX_PERIOD_MS).unwrap() },
        Algorithm::WarmUp(WarmUp::new(3_600_000, 100).unwrap()),
        Algorithm::SlidingWindowLog { min_interval: 1 },
    ];
    let mut tried = 0;
    for algorithm in algorithms {
        for requests in [0, 1, (1 << 31) - 1, 1 << 31, MAX_COUNT - 1, MAX_COUNT] {
            for period in [1, MAX_PERIOD_MS] {
                let (requests, millis) =
                    (Requests::new(requests).unwrap(), Period::from_millis(period).unwrap());
                let Ok(rate) = Rate::new(requests, millis, algorithm) else { continue };
                tried += 1;
                let limit = Arc::new(LimitSpec::new("ns/p/l", vec![rate]));
                let store = MemoryStore::new(1000, Clock::manual(0));
                let mut model = Model::default();
                for start in [0, START, 1 << 52] {
                    let mut now = start;
                    for cost in
                        [1, u64::MAX, 0, 1 << 31, MAX_COUNT, 1 << 32, 1, MAX_COUNT - 1, u64::MAX - 1, 1]
                    {
                        for wait in [0, 1, period * 1000 - 1, period * 1000] {
                            // The clock never goes back here, because a swept counter must not be checked at
                            // an earlier time.
                            now += wait;
                            let check = [Counter { limit: limit.clone(), key: hashed(7), cost }];
                            let response = store.check_at(&check, now);
                            assert_eq!(response, model.check(&check, now), "{check:?} at {now}");
                        }
                    }
                }
            }
        }
    }
    assert!(tried > 80);
}
