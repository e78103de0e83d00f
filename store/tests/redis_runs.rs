//! Checks that are sent at once go into calls together, many of them as runs. Whatever the calls are made of, everybody is
//! answered as if one had come after another.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "support/checks.rs"]
mod checks;
mod support;

use std::collections::HashMap;
use std::sync::Arc;

use checks::{check, healthy, patient};
use rand::rngs::StdRng;
use rand::{Rng as _, SeedableRng as _};
use sluice_limiter::{Algorithm, Period, Rate, Requests};
use sluice_store::{Counter, KeyHash, LimitSpec, RedisOptions, RedisStore};
use support::Redis;

/// Rates so long that no test ends in another window than it began, except once a year.
fn limit(scope: &str, requests: &[u64]) -> Arc<LimitSpec> {
    let rate = |(n, &requests): (usize, &u64)| {
        let period = Period::from_millis(sluice_limiter::MAX_PERIOD_MS - 60 * n as u64).unwrap();
        let algorithm = if n == 1 { Algorithm::FIXED_WINDOW } else { Algorithm::SLIDING_WINDOW };
        Rate::new(Requests::new(requests).unwrap(), period, algorithm).unwrap()
    };
    Arc::new(LimitSpec::new(format!("ns/policy/{scope}"), requests.iter().enumerate().map(rate).collect()))
}

/// What is known of a counter: its limit, and how much is used.
type Known = HashMap<(String, u128), (Arc<LimitSpec>, u64)>;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_sent_at_once_are_answered_as_one_after_another() {
    let redis = Redis::start(&[]);
    let store = Arc::new(RedisStore::start(patient(RedisOptions::new(redis.url()))).unwrap());
    healthy(&store).await;
    let seed = std::env::var("SLUICE_SEED").map_or_else(|_| rand::random(), |seed| seed.parse().unwrap());
    println!("SLUICE_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let (one, two, three) = (limit("one", &[4]), limit("two", &[3]), limit("three", &[900, 3, 5]));
    let (all, both) = (limit("all", &[2_000]), limit("both", &[300]));
    let mut known = Known::new();
    let (mut admitted, mut denied) = (0, 0);
    for _ in 0..120 {
        let asked: Vec<Vec<Counter>> = (0..rng.random_range(1..80))
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
        let ask = |counters: &Vec<_>| {
            let (store, asked) = (store.clone(), check(counters));
            tokio::spawn(async move { store.check(asked).await.unwrap() })
        };
        let asking: Vec<_> = asked.iter().map(ask).collect();
        let mut answers = vec![];
        for answer in asking {
            answers.push(answer.await.unwrap());
        }
        for (counters, answer) in asked.iter().zip(&answers).filter(|(_, answer)| answer.admitted) {
            for counter in counters {
                let name = (counter.limit.scope.clone(), counter.key.0);
                let (_, used) = known.entry(name).or_insert_with(|| (counter.limit.clone(), 0));
                *used += counter.cost;
            }
            admitted += 1;
            assert_eq!(
                answer.decisions.len(),
                counters.iter().map(|one| one.limit.rates.len()).sum::<usize>()
            );
        }
        denied += answers.iter().filter(|answer| !answer.admitted).count();
        // Of each counter: what was said of its first rate by those who were admitted is different each time, and the
        // last of it is what is used now.
        let mut said: HashMap<(String, u128), Vec<u64>> = HashMap::new();
        for (counters, answer) in asked.iter().zip(&answers) {
            let mut rest = &answer.decisions[..];
            for counter in counters {
                let (own, others) = rest.split_at(counter.limit.rates.len());
                rest = others;
                let name = (counter.limit.scope.clone(), counter.key.0);
                let used = known.get(&name).map_or(0, |(_, used)| *used);
                for (decision, rate) in own.iter().zip(&counter.limit.rates) {
                    assert_eq!(decision.limit, rate.requests.get());
                    let least = rate.requests.get().saturating_sub(used);
                    assert!(
                        decision.remaining >= least,
                        "{decision:?} of {name:?}, of which {used} are used"
                    );
                }
                if answer.admitted {
                    said.entry(name).or_default().push(own[0].remaining);
                } else if counters.len() == 1 {
                    let full = own.iter().any(|decision| decision.remaining < counter.cost);
                    assert!(full, "denied with room: {own:?}");
                }
            }
        }
        for (name, mut said) in said {
            let (limit, used) = &known[&name];
            said.sort_unstable();
            assert_eq!(said[0], limit.rates[0].requests.get() - used, "the last of {name:?}");
            assert!(said.windows(2).all(|pair| pair[0] < pair[1]), "twice the same of {name:?}: {said:?}");
        }
    }
    assert!(admitted > 500 && denied > 500, "{admitted} admitted, {denied} denied");
    let merged = store.metrics();
    assert!(merged.checks > 4 * merged.calls, "sent together: {merged:?}");
    // What the store holds is what was answered.
    for ((_, key), (limit, used)) in &known {
        let counter = Counter { limit: limit.clone(), key: KeyHash(*key), cost: 0 };
        let answer = store.check(check(&[counter])).await.unwrap();
        for (decision, rate) in answer.decisions.iter().zip(&limit.rates) {
            assert_eq!(decision.remaining, rate.requests.get() - used, "{decision:?}");
        }
    }
}
