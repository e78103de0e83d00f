//! Concurrent checks share calls, many of them as runs. In whatever way they are combined, their responses
//! are the same as of consecutive checks.

use std::collections::HashMap;
use std::sync::Arc;

use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use sluice_limiter::{Algorithm, Period, Rate, Requests};
use sluice_store::{Counter, KeyHash, LimitSpec, Store as _};

use crate::checks::{check, healthy, patient_store};
use crate::support::Redis;

crate::servers::pass_with_other_servers!();

/// A limit whose windows end during a test only once a year.
fn limit(scope: &str, requests: &[u64]) -> Arc<LimitSpec> {
    let rate = |(n, &requests): (usize, &u64)| {
        let period = Period::from_millis(sluice_limiter::MAX_PERIOD_MS - 60 * n as u64).unwrap();
        let algorithm = if n == 1 { Algorithm::FIXED_WINDOW } else { Algorithm::SLIDING_WINDOW };
        Rate::new(Requests::new(requests).unwrap(), period, algorithm).unwrap()
    };
    Arc::new(LimitSpec::new(format!("ns/policy/{scope}"), requests.iter().enumerate().map(rate).collect()))
}

/// The limit and the expected usage of each counter.
type Usage = HashMap<(String, u128), (Arc<LimitSpec>, u64)>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn concurrent_checks_have_the_responses_of_consecutive_ones() {
    let redis = Redis::start(&[]);
    let store = Arc::new(patient_store(&redis.url()));
    healthy(&store).await;
    let seed = std::env::var("SLUICE_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("SLUICE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (one, two, three) = (limit("one", &[4]), limit("two", &[3]), limit("three", &[900, 3, 5]));
    let (all, both) = (limit("all", &[2_000]), limit("both", &[300]));
    let mut usage = Usage::new();
    let (mut admitted, mut denied) = (0, 0);
    for _ in 0..120 {
        let checks: Vec<Vec<Counter>> = (0..rng.random_range(1..80))
            .map(|_| {
                let key = rng.random_range(1..400);
                let (own, shared) = (
                    |limit: &Arc<LimitSpec>| (limit.clone(), key),
                    |limit: &Arc<LimitSpec>| (limit.clone(), 0),
                );
                let counters = match rng.random_range(0..9) {
                    0 | 1 => vec![own(&one)],
                    2 => vec![own(&three)],
                    3 => vec![own(&one), shared(&all)],
                    4 => vec![shared(&all), own(&three)],
                    5 => vec![shared(&all), own(&one), shared(&both)],
                    6 => vec![own(&one), own(&two), shared(&all)],
                    7 => vec![shared(&both)],
                    _ => vec![own(&two), own(&one)],
                };
                let cost = if rng.random_bool(0.1) { 2 } else { 1 };
                let counter = |(limit, key)| Counter { limit, key: KeyHash(key), cost };
                counters.into_iter().map(counter).collect()
            })
            .collect();
        let send = |counters: &Vec<_>| {
            let (store, check) = (store.clone(), check(counters));
            tokio::spawn(async move { store.check(check).await.unwrap() })
        };
        let in_flight: Vec<_> = checks.iter().map(send).collect();
        let mut responses = vec![];
        for response in in_flight {
            responses.push(response.await.unwrap());
        }
        for (counters, response) in checks.iter().zip(&responses).filter(|(_, response)| response.admitted) {
            for counter in counters {
                let name = (counter.limit.scope.clone(), counter.key.0);
                let (_, used) = usage.entry(name).or_insert_with(|| (counter.limit.clone(), 0));
                *used += counter.cost;
            }
            admitted += 1;
            assert_eq!(
                response.decisions.len(),
                counters.iter().map(|counter| counter.limit.rates.len()).sum::<usize>()
            );
        }
        denied += responses.iter().filter(|response| !response.admitted).count();
        // The admitted responses of a counter's first rate all differ, and the last one shows the present
        // usage.
        let mut remaining: HashMap<(String, u128), Vec<u64>> = HashMap::new();
        for (counters, response) in checks.iter().zip(&responses) {
            let mut rest = &response.decisions[..];
            for counter in counters {
                let (own, others) = rest.split_at(counter.limit.rates.len());
                rest = others;
                let name = (counter.limit.scope.clone(), counter.key.0);
                let used = usage.get(&name).map_or(0, |(_, used)| *used);
                for (decision, rate) in own.iter().zip(&counter.limit.rates) {
                    assert_eq!(decision.limit, rate.requests.get());
                    let least = rate.requests.get().saturating_sub(used);
                    assert!(decision.remaining >= least, "{decision:?} of {name:?} with a usage of {used}");
                }
                if response.admitted {
                    remaining.entry(name).or_default().push(own[0].remaining);
                } else if counters.len() == 1 {
                    let full = own.iter().any(|decision| decision.remaining < counter.cost);
                    assert!(full, "denied with room: {own:?}");
                }
            }
        }
        for (name, mut remaining) in remaining {
            let (limit, used) = &usage[&name];
            remaining.sort_unstable();
            assert_eq!(remaining[0], limit.rates[0].requests.get() - used, "the last response for {name:?}");
            assert!(
                remaining.windows(2).all(|pair| pair[0] < pair[1]),
                "the same response twice for {name:?}: {remaining:?}"
            );
        }
    }
    assert!(admitted > 500 && denied > 500, "{admitted} admitted, {denied} denied");
    let metrics = store.metrics();
    assert!(metrics.checks > 4 * metrics.calls, "checks share calls: {metrics:?}");
    // The stored counters agree with the responses.
    for ((_, key), (limit, used)) in &usage {
        let counter = Counter { limit: limit.clone(), key: KeyHash(*key), cost: 0 };
        let response = store.check(check(&[counter])).await.unwrap();
        for (decision, rate) in response.decisions.iter().zip(&limit.rates) {
            assert_eq!(decision.remaining, rate.requests.get() - used, "{decision:?}");
        }
    }
}

/// A counter with a record of an earlier edit is too much for the small scripts.
#[tokio::test]
async fn a_check_that_a_small_script_leaves_undecided_is_charged_once() {
    let redis = Redis::start(&[]);
    let store = patient_store(&redis.url());
    healthy(&store).await;
    let (own, all) = (limit("edited", &[4]), limit("all", &[9]));
    let log = Algorithm::SlidingWindowLog { min_interval: 0 };
    let before = Rate::new(Requests::new(5).unwrap(), own.rates[0].period, log).unwrap();
    let before = Arc::new(LimitSpec::new(own.scope.clone(), vec![before]));
    let counter = |limit: &Arc<LimitSpec>, key| Counter { limit: limit.clone(), key: KeyHash(key), cost: 1 };
    for (key, counters) in [(1, vec![counter(&own, 1)]), (2, vec![counter(&own, 2), counter(&all, 0)])] {
        assert!(store.check(check(&[counter(&before, key)])).await.unwrap().admitted);
        let response = store.check(check(&counters)).await.unwrap();
        let remaining: Vec<_> = response.decisions.iter().map(|decision| decision.remaining).collect();
        assert_eq!((response.admitted, &remaining[..]), (true, &[3, 8][..counters.len()]));
        if key == 1 {
            assert_eq!(store.metrics().calls, 3, "the undecided check needed a second call");
        }
    }
    for (limit, key, remaining) in [(&own, 1, 3), (&own, 2, 3), (&all, 0, 8)] {
        let peek = Counter { cost: 0, ..counter(limit, key) };
        let response = store.check(check(&[peek])).await.unwrap();
        assert_eq!(response.decisions[0].remaining, remaining, "charged once");
    }
}
