//! The maximum number of keys of a limit, in a real Redis: a flood of new keys fills neither the memory nor changes a
//! decision about a known key.
//!
//! `SLUICE_FLOOD_KEYS` sets the number of keys of the flood.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::time::{Duration, Instant};

use redis::Commands;
use sluice_limiter::{Algorithm, Burst, MAX_PERIOD_MS};
use sluice_store::{
    Consistency, Counter, KeyHash, LimitPlan, LimitSpec, Limiter, LimiterOptions, OnStoreFailure,
    PlannedCounter, RedisOptions, RedisStore, Replica, Replicas, Settlement, Source, Store as _,
};

use crate::checks::{admitted, check, counter, decide, healthy, patient, patient_store, rate};
use crate::support;
use crate::support::{Redis, eventually};

crate::servers::pass_with_other_servers!();

/// A limit per longest period, with a maximum number of keys.
fn limit(scope: &str, requests: u64, max_keys: u64) -> Arc<LimitSpec> {
    limit_by(scope, requests, MAX_PERIOD_MS, Algorithm::SLIDING_WINDOW, max_keys)
}

fn limit_by(scope: &str, requests: u64, period: u64, algorithm: Algorithm, max_keys: u64) -> Arc<LimitSpec> {
    let rates = vec![rate(requests, period, algorithm)];
    Arc::new(LimitSpec::new(format!("ns/policy/{scope}"), rates).with_max_keys(max_keys))
}

/// Returns a key that is spread over all bits like a hash.
fn key(client: u64) -> u128 {
    (u128::from(client) + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835)
}

/// Starts a store with one partition, whose keys share one registry and one overflow counter.
fn in_one_partition(redis: &Redis) -> RedisStore {
    RedisStore::start(RedisOptions { partitions: 1, ..patient(&redis.url()) }).unwrap()
}

/// Fills a limit of 20 keys in one partition: it takes 25.
async fn fill(store: &RedisStore, limit: &Arc<LimitSpec>) {
    for client in 0..25 {
        let response = decide(store, &[counter(limit, key(client))]).await;
        assert!(!response.key_usages.any_overflowed(), "key {client} has a counter of its own");
    }
}

fn used_memory(redis: &Redis) -> u64 {
    let info: String = redis::cmd("INFO").arg("memory").query(&mut redis.connection()).unwrap();
    let line = info.lines().find_map(|line| line.strip_prefix("used_memory:"));
    line.unwrap().trim().parse().unwrap()
}

fn size(redis: &Redis) -> u64 {
    support::keys_of_limits(&mut redis.connection())
}

/// Sends one check for each of these clients, from many callers of both stores. Returns how many were decided by an
/// overflow counter.
async fn send_all(stores: &[Arc<RedisStore>], limit: &Arc<LimitSpec>, clients: std::ops::Range<u64>) -> u64 {
    let next = Arc::new(AtomicU64::new(clients.start));
    let callers: Vec<_> = (0..128)
        .map(|n| {
            let (store, limit, next) = (stores[n % stores.len()].clone(), limit.clone(), next.clone());
            tokio::spawn(async move {
                let mut overflowed = 0;
                loop {
                    let client = next.fetch_add(1, SeqCst);
                    if client >= clients.end {
                        return overflowed;
                    }
                    let response = decide(&store, &[counter(&limit, key(client))]).await;
                    overflowed += u64::from(response.key_usages.any_overflowed());
                }
            })
        })
        .collect();
    let mut overflowed = 0;
    for caller in callers {
        overflowed += caller.await.unwrap();
    }
    overflowed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn a_flood_of_new_keys_fills_no_more_than_the_maximum_and_known_keys_stay_exact() {
    const MAX_KEYS: u64 = 50_000;
    const KNOWN: u64 = 200;
    let flood: u64 = std::env::var("SLUICE_FLOOD_KEYS").map_or(300_000, |keys| keys.parse().unwrap());

    // The memory of the maximum number of keys.
    let other = Redis::start(&[]);
    let stores = [Arc::new(patient_store(&other.url()))];
    healthy(&stores[0]).await;
    let before = used_memory(&other);
    send_all(&stores, &limit("reference", 50, 0), 0..MAX_KEYS).await;
    let bound = used_memory(&other) - before;

    let redis = Redis::start(&[]);
    let stores: Vec<_> = (0..2).map(|_| Arc::new(patient_store(&redis.url()))).collect();
    healthy(&stores[1]).await;
    let before = used_memory(&redis);
    let limit = limit("flood", 50, MAX_KEYS);
    // The clients from 1,000,000,000 on are known before the flood. Each may send 50 requests.
    let known = 1_000_000_000..1_000_000_000 + KNOWN;
    assert_eq!(send_all(&stores, &limit, known.clone()).await, 0);
    let (began, done) = (Instant::now(), Arc::new(AtomicU64::new(0)));
    let requests = {
        let (stores, limit, done) = (stores.clone(), limit.clone(), done.clone());
        tokio::spawn(async move {
            let mut sent = vec![1u64; KNOWN as usize];
            for turn in 0.. {
                for (n, client) in known.clone().enumerate() {
                    let response = decide(&stores[turn % 2], &[counter(&limit, key(client))]).await;
                    // The model: a counter of its own.
                    assert_eq!(response.admitted, sent[n] < 50, "client {n} after {} requests", sent[n]);
                    assert!(!response.key_usages.any_overflowed());
                    sent[n] += 1;
                }
                if done.load(SeqCst) > 0 && turn > 60 {
                    break;
                }
            }
            sent.iter().sum::<u64>()
        })
    };
    let overflowed = send_all(&stores, &limit, 0..flood).await;
    done.store(1, SeqCst);
    let lasted = began.elapsed();
    let exact = requests.await.unwrap();
    let (keys, memory) = (size(&redis), used_memory(&redis) - before);
    println!(
        "{flood} new keys in {lasted:?}, {overflowed} overflowed, {exact} exact decisions about known keys; \
         {keys} keys of {MAX_KEYS}, {memory} bytes of {bound}"
    );
    assert!((MAX_KEYS * 3 / 4..=MAX_KEYS * 5 / 4).contains(&keys), "{keys} keys");
    // The buffers of connections are not those of keys.
    assert!(memory <= bound * 5 / 4 + (1 << 19), "{memory} bytes, and {MAX_KEYS} keys take {bound}");
    assert_eq!(keys - 2 * 64 - KNOWN, flood - overflowed, "each other key has a counter of its own");
}

#[tokio::test]
async fn new_keys_are_accepted_again_when_the_others_have_expired() {
    let redis = Redis::start(&[]);
    let store = in_one_partition(&redis);
    let bucket = Algorithm::TokenBucket { burst: Burst::new(1).unwrap() };
    let log = Algorithm::SlidingWindowLog { min_interval: 0 };
    for (scope, algorithm) in [
        ("windows", Algorithm::SLIDING_WINDOW),
        ("fixed", Algorithm::FIXED_WINDOW),
        ("bucket", bucket),
        ("log", log),
    ] {
        let limit = limit_by(scope, 1, 1500, algorithm, 20);
        for client in 0..200 {
            decide(&store, &[counter(&limit, key(client))]).await;
        }
        let client = AtomicU64::new(1000);
        eventually("a new key is accepted", || async {
            let client = client.fetch_add(1, SeqCst);
            let response = decide(&store, &[counter(&limit, key(client))]).await;
            response.admitted && !response.key_usages.any_overflowed()
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_stores_admit_exactly_the_limit_by_a_known_key_and_by_the_overflow_counter() {
    let redis = Redis::start(&[]);
    let stores: Vec<_> = (0..2).map(|_| Arc::new(in_one_partition(&redis))).collect();
    let limit = limit("exact", 300, 20);
    fill(&stores[0], &limit).await;
    let tasks: Vec<_> = (0..32u64)
        .map(|n| {
            let (store, limit) = (stores[n as usize % 2].clone(), limit.clone());
            tokio::spawn(async move {
                let (mut by_known, mut by_new) = (0, 0);
                for turn in 0..30 {
                    by_known += admitted(&store, &[counter(&limit, key(7))], 1).await;
                    by_new += admitted(&store, &[counter(&limit, key(1000 + n * 1000 + turn))], 1).await;
                }
                (by_known, by_new)
            })
        })
        .collect();
    let (mut by_known, mut by_new) = (1, 0);
    for task in tasks {
        let admitted = task.await.unwrap();
        (by_known, by_new) = (by_known + admitted.0, by_new + admitted.1);
    }
    assert_eq!((by_known, by_new), (300, 300));
    // 25 keys, the registry and the overflow counter.
    assert_eq!(size(&redis), 27);
}

#[tokio::test]
async fn a_peek_shows_the_counter_that_would_decide_and_creates_nothing() {
    let redis = Redis::start(&[]);
    let store = in_one_partition(&redis);
    let limit = limit("peek", 3, 20);
    let peek = |client| Counter { cost: 0, ..counter(&limit, key(client)) };
    assert!(!decide(&store, &[peek(500)]).await.key_usages.any_overflowed());
    assert_eq!(size(&redis), 0);
    fill(&store, &limit).await;
    assert_eq!(admitted(&store, &[counter(&limit, key(500))], 2).await, 2);
    let response = decide(&store, &[peek(501)]).await;
    assert!(response.admitted && response.key_usages.is_overflowed(0));
    assert_eq!(response.decisions[0].remaining, 1);
    assert_eq!(size(&redis), 27);
}

#[tokio::test]
async fn a_settlement_corrects_the_counter_that_was_charged() {
    let redis = Redis::start(&[]);
    let store = in_one_partition(&redis);
    let limit = limit("settle", 3, 20);
    fill(&store, &limit).await;
    let new = [counter(&limit, key(500))];
    let response = decide(&store, &new).await;
    assert_eq!(admitted(&store, &new, 5).await, 2);
    let refund = |overflowed| Settlement {
        limit: limit.clone(),
        key: KeyHash(key(500)),
        charged: response.at,
        delta: -1,
        overflowed,
        least: 0,
    };
    store.settle(refund(false)).await.unwrap();
    assert_eq!(admitted(&store, &new, 1).await, 0, "the key has no counter");
    store.settle(refund(true)).await.unwrap();
    assert_eq!(admitted(&store, &new, 2).await, 1);
    assert_eq!(size(&redis), 27);
}

#[tokio::test]
async fn a_limiter_remembers_nothing_of_an_overflow_counter() {
    let redis = Redis::start(&[]);
    let store = Arc::new(in_one_partition(&redis));
    let limit = limit("limiter", 3, 20);
    fill(&store, &limit).await;
    let one = store.key(&counter(&limit, key(500)));
    let partition = one.trim_end_matches(|c| c != ':');
    let (registry, overflow) = (format!("{partition}keys"), format!("{partition}overflow"));
    for consistency in [Consistency::Strict, Consistency::Leased] {
        let replicas = Replicas::new(Replica::new(0, 1));
        let plan =
            Arc::new(LimitPlan::new(limit.clone(), consistency, OnStoreFailure::Share, false, replicas));
        let options = LimiterOptions { latency_budget: Duration::from_secs(10), ..LimiterOptions::default() };
        let limiter = Limiter::in_redis(store.clone(), &options, None);
        let new = [PlannedCounter { limit: plan, key: KeyHash(key(500)), cost: 1 }];
        let (): () = redis.connection().del(&overflow).unwrap();
        for n in 0..6 {
            let outcome = limiter.check(&new).await.unwrap();
            assert_eq!(
                (outcome.response.admitted, outcome.source),
                (n < 3, Source::Store),
                "{consistency:?}"
            );
        }
        // Without the registry, the key gets a counter of its own, at once and with all of its requests.
        let kept: Vec<u8> = redis.connection().get(&registry).unwrap();
        let (): () = redis.connection().del(&registry).unwrap();
        let outcome = limiter.check(&new).await.unwrap();
        assert!(outcome.response.admitted, "{consistency:?}");
        assert_eq!(outcome.response.decisions[0].remaining, 2);
        limiter.close().await;
        let (): () = redis.connection().set(&registry, kept).unwrap();
        let (): () = redis.connection().del(&one).unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn leases_of_new_keys_take_no_more_than_the_overflow_counter_has() {
    let redis = Redis::start(&[]);
    let store = Arc::new(in_one_partition(&redis));
    let limit = limit("leased", 2000, 20);
    fill(&store, &limit).await;
    let replicas = Replicas::new(Replica::new(0, 1));
    let plan =
        Arc::new(LimitPlan::new(limit.clone(), Consistency::Leased, OnStoreFailure::Share, false, replicas));
    assert!(plan.is_leased());
    let options = LimiterOptions { latency_budget: Duration::from_secs(10), ..LimiterOptions::default() };
    let limiter = Arc::new(Limiter::in_redis(store.clone(), &options, None));
    let tasks: Vec<_> = (0..8u64)
        .map(|n| {
            let new = [PlannedCounter { limit: plan.clone(), key: KeyHash(key(500 + n % 2)), cost: 1 }];
            let limiter = limiter.clone();
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..300 {
                    admitted += u64::from(limiter.check(&new).await.unwrap().response.admitted);
                }
                admitted
            })
        })
        .collect();
    let mut total = 0;
    for task in tasks {
        total += task.await.unwrap();
    }
    limiter.close().await;
    // Blocks that were given back just now may have denied a request.
    assert!((1900..=2000).contains(&total), "{total} of 2000");
    let rest = admitted(&store, &[counter(&limit, key(600))], 200).await as u64;
    assert_eq!(total + rest, 2000, "all that was not admitted was given back");
}

#[tokio::test]
async fn a_response_tells_how_many_keys_are_in_use_only_when_a_key_is_counted() {
    let redis = Redis::start(&[]);
    let store = in_one_partition(&redis);
    let limit = limit("usage", 10, 20);
    for client in 0..30 {
        let one = [counter(&limit, key(client))];
        let used = decide(&store, &one).await.key_usages.0.first().map(|usage| usage.used);
        let expected = (client < 25).then(|| (50 * (client as u16 + 1)).min(1000));
        assert_eq!(used, Some(expected), "client {client}");
        let again = decide(&store, &one).await.key_usages;
        assert_eq!(again.0.is_empty(), client < 25);
    }
}

#[tokio::test]
async fn a_user_whose_keys_are_those_of_a_namespace_may_use_registries_and_overflow_counters() {
    let redis = Redis::start(&[]);
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg("tenant").arg(&["on", ">secret", "resetkeys", "~sluice:ns/*", "-@all"]);
    let rights = ["+evalsha", "+eval", "+time", "+get", "+mget", "+set", "+setrange"];
    let (): () = command.arg(&rights).query(&mut redis.connection()).unwrap();
    let url = format!("redis://tenant:secret@127.0.0.1:{}", redis.port);
    let store = RedisStore::start(RedisOptions { partitions: 1, ..patient(&url) }).unwrap();
    let limit = limit("tenant", 3, 20);
    fill(&store, &limit).await;
    let response = store.check(check(&[counter(&limit, key(500))])).await.unwrap();
    assert!(response.admitted && response.key_usages.any_overflowed());
    assert_eq!(size(&redis), 27);
}
