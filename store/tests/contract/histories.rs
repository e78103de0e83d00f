//! Generated histories of a few counters, compared with the definition step by step: limits of all algorithms and their edits,
//! checks of several counters, refunds, and clocks that step where they are not real.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::ValueTree as _;
use proptest::test_runner::TestRunner;
use sluice_limiter::{
    Algorithm, Alignment, Bound, Burst, MAX_COUNT, MAX_PERIOD_MS, MaxWait, Period, Rate, Requests, Soft,
    SubWindows, WarmUp,
};
use sluice_store::{Counter, KeyHash, LimitSpec, Settlement, Store as _};

use super::definition::Definition;
use super::{KEY, Subject, counter, decide, limit, yearly};

const DAY: i64 = 86_400_000_000;
/// Number of histories. Each has counters of its own.
const HISTORIES: usize = 200;
/// So many checks and refunds are compared at least, though a history ends when something in it is ambiguous.
const LEAST_COMPARED: usize = 2000;

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
        2 => 1u64..50,
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
    prop_oneof![12 => Just(1u64), 3 => 0u64..8, 1 => 0..=MAX_COUNT]
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
    /// Checks counters, each given by limit and cost, a number of times, this many microseconds apart.
    Check(Vec<(usize, u64)>, usize, i64),
    /// Changes a limit to one of its versions.
    Edit(usize, usize),
    /// Moves the clock by microseconds, forward or back.
    Wait(i64),
    /// Refunds a part of one of the charges.
    Refund(usize, i64),
}

fn any_step() -> impl Strategy<Value = Step> {
    let counter = || (0usize..4, any_cost());
    let wait = prop_oneof![
        4 => 0i64..2_000_000,
        2 => 0i64..200_000_000,
        1 => prop_oneof![Just(1_000i64), Just(1_000_000), Just(60_000_000), Just(999), Just(1)],
        1 => -2_000_000i64..0,
        1 => prop_oneof![Just(DAY), Just(-DAY), -DAY..DAY],
    ];
    let delta = prop_oneof![3 => -5i64..0, 1 => i64::MIN..0];
    prop_oneof![
        6 => vec(counter(), 1..5).prop_map(|counters| Step::Check(counters, 1, 0)),
        4 => (counter(), 1usize..8, 0i64..400)
            .prop_map(|(counter, times, apart)| Step::Check(vec![counter], times, apart)),
        1 => (0usize..4, 0usize..3).prop_map(|(limit, version)| Step::Edit(limit, version)),
        3 => wait.prop_map(Step::Wait),
        2 => (any::<usize>(), delta).prop_map(|(charge, delta)| Step::Refund(charge, delta)),
    ]
}

/// The limits of a history, each in three versions.
fn limits(history: usize, versions: Vec<Vec<Vec<Rate>>>) -> Vec<Vec<Arc<LimitSpec>>> {
    let spec = |n: usize, mut rates: Vec<Rate>| {
        // Half of the limits have one rate. No limit has two rates with the same tag, and a block is the last one.
        rates.truncate(if n.is_multiple_of(2) { 1 } else { 3 });
        rates.sort_by_key(|rate| (rate.counts_only_own_denials(), rate.tag()));
        rates.dedup_by_key(|rate| rate.tag());
        limit(&format!("history-{history}-{n}"), rates)
    };
    let versions = versions.into_iter().enumerate();
    versions.map(|(n, versions)| versions.into_iter().map(|rates| spec(n, rates)).collect()).collect()
}

pub(super) async fn histories_are_those_of_the_definition(subject: &impl Subject) {
    let mut runner = TestRunner::default();
    let histories = (vec(any_versions(), 4), vec(any_step(), 1..40));
    let mut compared = 0;
    for history in 0..HISTORIES {
        let (versions, steps) = histories.new_tree(&mut runner).unwrap().current();
        let key = KeyHash(KEY.0 ^ history as u128);
        compared += follow(subject, &limits(history, versions), &steps, key).await;
    }
    println!("{compared} checks and refunds compared");
    assert!(compared >= LEAST_COMPARED, "only {compared} checks and refunds were compared");
}

/// Follows a history until something in it is ambiguous. Returns how many checks and refunds were compared.
async fn follow(
    subject: &impl Subject,
    limits: &[Vec<Arc<LimitSpec>>],
    steps: &[Step],
    key: KeyHash,
) -> usize {
    let mut compared = 0;
    let store = &*subject.clients()[0];
    let (mut definition, mut version) = (Definition::default(), [0; 4]);
    let mut charges: Vec<(Counter, u64)> = Vec::new();
    let (mut latest, clock) = (0, yearly("clock", 1));
    // A server with a real clock removes a counter some time after its script has read the time.
    let within = if subject.pass(0) { 0 } else { 5 };
    for (n, step) in steps.iter().enumerate() {
        match step {
            Step::Wait(micros) => {
                subject.pass(*micros);
            }
            Step::Edit(limit, to) => version[*limit] = *to,
            Step::Check(counters, times, apart) => {
                let mut counters = counters.clone();
                counters.sort_unstable();
                counters.dedup_by_key(|counter| counter.0);
                let first = n % counters.len();
                counters.rotate_left(first);
                let planned = |(limit, cost): (usize, u64)| Counter {
                    limit: limits[limit][version[limit]].clone(),
                    key,
                    cost,
                };
                let check: Vec<_> = counters.into_iter().map(planned).collect();
                for _ in 0..*times {
                    let found = decide(store, &check).await;
                    latest = latest.max(found.at);
                    if definition.is_ambiguous(&check, found.at, latest, within) {
                        return compared;
                    }
                    compared += 1;
                    let expected = definition.check(&check, found.at);
                    let context = || format!("step {n} of {steps:?}: {check:?}");
                    assert_eq!(found.admitted, expected.admitted, "{}", context());
                    assert_eq!(found.decisions, expected.decisions, "{}", context());
                    if found.admitted {
                        charges.extend(check.iter().map(|counter| (counter.clone(), found.at)));
                    }
                    subject.pass(*apart);
                }
            }
            Step::Refund(charge, delta) => {
                if let Some(n) = charge.checked_rem(charges.len()) {
                    let (Counter { limit, key, .. }, charged) = charges.swap_remove(n);
                    let refund = || Settlement {
                        limit: limit.clone(),
                        key,
                        charged,
                        delta: *delta,
                        overflowed: false,
                        least: 0,
                    };
                    // The answer does not tell when it was.
                    let before = decide(store, &[counter(&clock, 0)]).await.at;
                    store.settle(refund()).await.unwrap();
                    let now = decide(store, &[counter(&clock, 0)]).await.at;
                    latest = latest.max(now);
                    let mut earlier = definition.clone();
                    earlier.settle(&refund(), before);
                    let looked = Counter { limit: limit.clone(), key, cost: 0 };
                    let is_ambiguous = definition.is_ambiguous(&[looked], now, latest, within);
                    definition.settle(&refund(), now);
                    if is_ambiguous || definition != earlier {
                        return compared;
                    }
                    compared += 1;
                }
            }
        }
    }
    compared
}
