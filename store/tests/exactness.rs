//! N is N: real servers, many stores and many clients at once, every algorithm. And whoever is denied is told exactly how
//! long to wait.
//!
//! A table is printed of what was admitted and what the counters say.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use redis::Commands;
use sluice_limiter::{
    Algorithm, Alignment, Bound, Burst, MAX_PERIOD_MS, MaxWait, Period, Rate, Record, Requests, Soft,
    SubWindows, WarmUp,
};
use sluice_store::check::{Records, decide};
use sluice_store::{
    CheckRequest, CheckResponse, Clock, Counter, KeyHash, LimitSpec, MemoryStore, RedisOptions, RedisStore,
};
use support::Redis;

const STORES: usize = 8;
const CLIENTS: usize = 200;
const MINUTE: u64 = 60_000;
const KEY: KeyHash = KeyHash(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c835);

fn rate(requests: u64, period: u64, algorithm: Algorithm) -> Rate {
    Rate::new(Requests::new(requests).unwrap(), Period::from_millis(period).unwrap(), algorithm).unwrap()
}

fn sliding(slots: u64, bound: Bound) -> Algorithm {
    Algorithm::SlidingWindowCounter { sub_windows: SubWindows::new(slots).unwrap(), bound }
}

fn burst(tokens: u64) -> Burst {
    Burst::new(tokens).unwrap()
}

fn log(min_interval: u64, count_denied: bool) -> Algorithm {
    Algorithm::SlidingWindowLog { min_interval, count_denied }
}

fn limit(scope: &str, rates: Vec<Rate>) -> Arc<LimitSpec> {
    Arc::new(LimitSpec::new(format!("ns/policy/{scope}"), rates))
}

fn counter(limit: &Arc<LimitSpec>, cost: u64) -> Counter {
    Counter { limit: limit.clone(), key: KEY, cost }
}

/// A year, or a little less, so that no window ends while a test runs.
fn long_period() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let phase = rate(1, MAX_PERIOD_MS, Algorithm::FixedWindow(Alignment::Spread)).phase(KEY.0) / 1000;
    let left = |period: u64, ahead: u64| period - (now.as_millis() as u64 + ahead) % period;
    // All of them can be cut into 60 parts and into 300.
    let periods = [MAX_PERIOD_MS, MAX_PERIOD_MS - 3_900_000, MAX_PERIOD_MS - 7_800_000];
    let calm = |&period: &u64| left(period, 0) > 20 * MINUTE && left(period, phase % period) > 20 * MINUTE;
    periods.into_iter().find(calm).unwrap()
}

/// Every algorithm that admits a number in one period, or at once; and the number.
fn all() -> Vec<(&'static str, Rate, u64)> {
    let year = long_period();
    let n = 997;
    let soft = Soft::new(20, MAX_PERIOD_MS).unwrap();
    let wait = MaxWait::from_millis(year / 300 * 299).unwrap();
    vec![
        ("slidingWindowCounter", rate(n, year, Algorithm::SLIDING_WINDOW), n),
        ("slidingWindowCounter, 60 sub-windows", rate(n, year, sliding(60, Bound::Estimate)), n),
        ("slidingWindowCounter, Guaranteed", rate(n, year, sliding(60, Bound::Guaranteed)), n),
        ("fixedWindow, Clock", rate(n, year, Algorithm::FIXED_WINDOW), n),
        ("fixedWindow, FirstRequest", rate(n, year, Algorithm::FixedWindow(Alignment::FirstRequest)), n),
        ("fixedWindow, Spread", rate(n, year, Algorithm::FixedWindow(Alignment::Spread)), n),
        ("slidingWindowLog", rate(n, year, log(0, false)), n),
        ("slidingWindowLog, countDenied", rate(n, year, log(0, true)), n),
        ("slidingWindowLog, minInterval", rate(n, year, log(year, false)), 1),
        ("tokenBucket, burst 997", rate(n, year, Algorithm::TokenBucket { burst: burst(n) }), n),
        ("gcra, burst 1", rate(n, year, Algorithm::Gcra { burst: burst(1) }), 1),
        ("leakyBucket, 299 may wait", rate(300, year, Algorithm::LeakyBucket { max_wait: wait }), 300),
        ("warm-up", rate(n, year / 3, Algorithm::WarmUp(WarmUp::new(60_000, 3).unwrap())), 1),
        ("soft, 20 % more", rate(1000, year, Algorithm::SLIDING_WINDOW).with_soft(soft).unwrap(), 1200),
    ]
}

/// So generous that a loaded machine does not fail a test about something else.
fn stores(redis: &Redis) -> Vec<Arc<RedisStore>> {
    let options =
        || RedisOptions { latency_budget: Duration::from_secs(10), ..RedisOptions::new(redis.url()) };
    (0..STORES).map(|_| Arc::new(RedisStore::start(options()).unwrap())).collect()
}

/// How many of so many checks of 200 clients are admitted by 8 stores, all at once.
async fn storm(stores: &[Arc<RedisStore>], check: &CheckRequest, times: usize) -> u64 {
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let (store, check) = (stores[n % STORES].clone(), check.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                for _ in 0..times.div_ceil(CLIENTS) {
                    admitted += u64::from(store.check(check.clone()).await.unwrap().admitted);
                }
                admitted
            })
        })
        .collect();
    let mut total = 0;
    for client in clients {
        total += client.await.unwrap();
    }
    total
}

/// As [`storm`], of 200 threads in one memory store.
fn storm_in_memory(store: &MemoryStore, check: &[Counter], times: usize) -> u64 {
    std::thread::scope(|scope| {
        let client = || (0..times.div_ceil(CLIENTS)).filter(|_| store.check(check).admitted).count() as u64;
        let clients: Vec<_> = (0..CLIENTS).map(|_| scope.spawn(client)).collect();
        clients.into_iter().map(|client| client.join().unwrap()).sum()
    })
}

fn stored(redis: &Redis, store: &RedisStore, counter: &Counter) -> Vec<Record> {
    let bytes: Vec<u8> = redis.connection().get(store.key(counter)).unwrap();
    Record::decode_all(&bytes).unwrap()
}

/// What the counters of a limit in Redis say is used, rate by rate: of a leaky bucket how many turns are reserved, of a
/// warm-up whether the next has to wait.
fn used(redis: &Redis, store: &RedisStore, counter: &Counter) -> Vec<u64> {
    let records = stored(redis, store, counter);
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut redis.connection()).unwrap();
    let now = seconds * 1_000_000 + micros;
    let one = |rate: &Rate| {
        let record = records.iter().find(|record| record.tag == rate.tag()).unwrap().clone();
        let now = now + rate.phase(KEY.0);
        if let Algorithm::LeakyBucket { .. } = rate.algorithm {
            let ahead = record.window * 1000 + record.previous - now;
            return (ahead * rate.requests.get()).div_ceil(rate.period.micros());
        }
        let (record, at) = rate.roll(Some(record), now);
        rate.used(&record, at)
    };
    counter.limit.rates.iter().map(one).collect()
}

struct Row(String, usize, u64, usize, u64, String);

fn print(rows: &[Row]) {
    println!("| algorithm | stores | clients | N | checks | admitted | counters |");
    println!("|---|---|---|---|---|---|---|");
    for Row(what, stores, n, checks, admitted, counters) in rows {
        println!("| {what} | {stores} | {CLIENTS} | {n} | {checks} | {admitted} | {counters} |");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn exactly_the_number_passes_of_200_clients_at_8_stores() {
    let redis = Redis::start(&[]);
    let stores = stores(&redis);
    let mut rows = vec![];
    for (n, (what, rate, expected)) in all().into_iter().enumerate() {
        let limit = limit(&format!("one-{n}"), vec![rate]);
        let (check, times) = ([counter(&limit, 1)].into_iter().collect(), 3000);
        let admitted = storm(&stores, &check, times).await;
        let used = used(&redis, &stores[0], &check[0]);
        rows.push(Row(what.to_owned(), STORES, expected, times, admitted, format!("{used:?}")));
        assert_eq!((admitted, used[0]), (expected, expected), "{what}");
    }
    print(&rows);
}

#[test]
fn exactly_the_number_passes_of_200_threads_at_a_memory_store() {
    let store = MemoryStore::new(1000, Clock::system());
    let mut rows = vec![];
    for (n, (what, rate, expected)) in all().into_iter().enumerate() {
        let limit = limit(&format!("one-{n}"), vec![rate]);
        let times = 3000;
        let admitted = storm_in_memory(&store, &[counter(&limit, 1)], times);
        let peek = store.check(&[counter(&limit, 0)]);
        let left = peek.decisions[0].remaining;
        rows.push(Row(what.to_owned(), 1, expected, times, admitted, format!("{left} left")));
        assert_eq!((admitted, peek.admitted), (expected, false), "{what}");
        // A least interval denies though the number is not reached.
        assert_eq!(left, if what.contains("minInterval") { 996 } else { 0 }, "{what}");
    }
    print(&rows);
}

/// Three limits in one check: those of which more is left than of the smallest.
fn three_limits() -> Vec<(&'static str, [Rate; 3])> {
    let year = long_period();
    let window = Algorithm::SLIDING_WINDOW;
    vec![
        ("windows", [rate(500, year, window), rate(300, year, window), rate(700, year, window)]),
        (
            "window, log, bucket",
            [
                rate(500, year, sliding(60, Bound::Estimate)),
                rate(300, year, log(0, false)),
                rate(700, year, Algorithm::TokenBucket { burst: burst(700) }),
            ],
        ),
        (
            "Spread, Guaranteed, FirstRequest",
            [
                rate(500, year, Algorithm::FixedWindow(Alignment::Spread)),
                rate(300, year, sliding(60, Bound::Guaranteed)),
                rate(700, year, Algorithm::FixedWindow(Alignment::FirstRequest)),
            ],
        ),
    ]
}

/// The smallest decides; the others are charged what it admitted and nothing else, so the rest of them is there afterwards.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_three_limits_the_smallest_decides_and_denials_consume_nothing() {
    let redis = Redis::start(&[]);
    let stores = stores(&redis);
    let mut rows = vec![];
    for (n, (what, rates)) in three_limits().into_iter().enumerate() {
        let limits = rates.map(|rate| limit(&format!("three-{n}-{}", rate.requests.get()), vec![rate]));
        let all: CheckRequest = limits.iter().map(|limit| counter(limit, 1)).collect();
        let admitted = storm(&stores, &all, 3000).await;
        let counted: Vec<u64> = all.iter().flat_map(|counter| used(&redis, &stores[0], counter)).collect();
        rows.push(Row(format!("three limits: {what}"), STORES, 300, 3000, admitted, format!("{counted:?}")));
        assert_eq!((admitted, &counted[..]), (300, &[300; 3][..]), "{what}");
        for (limit, rest) in [(&limits[0], 200), (&limits[1], 0), (&limits[2], 400)] {
            let alone: CheckRequest = [counter(limit, 1)].into_iter().collect();
            assert_eq!(storm(&stores, &alone, 1000).await, rest, "{what}");
        }
    }
    print(&rows);
}

#[test]
fn of_three_limits_in_memory_the_smallest_decides_and_denials_consume_nothing() {
    let store = MemoryStore::new(1000, Clock::system());
    for (n, (what, rates)) in three_limits().into_iter().enumerate() {
        let limits = rates.map(|rate| limit(&format!("three-{n}-{}", rate.requests.get()), vec![rate]));
        let all: CheckRequest = limits.iter().map(|limit| counter(limit, 1)).collect();
        assert_eq!(storm_in_memory(&store, &all, 3000), 300, "{what}");
        for (limit, rest) in [(&limits[0], 200), (&limits[1], 0), (&limits[2], 400)] {
            assert_eq!(storm_in_memory(&store, &[counter(limit, 1)], 1000), rest, "{what}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn of_three_rates_of_a_limit_the_smallest_decides() {
    let redis = Redis::start(&[]);
    let (stores, memory) = (stores(&redis), MemoryStore::new(1000, Clock::system()));
    let mut rows = vec![];
    for (n, (what, rates)) in three_limits().into_iter().enumerate() {
        // Rates of one limit differ in their periods; those of the same algorithm by a little.
        let apart = |(n, rate): (usize, Rate)| {
            let period = Period::from_millis(rate.period.millis() - 60 * n as u64).unwrap();
            Rate::new(rate.requests, period, rate.algorithm).unwrap()
        };
        let limit = limit(&format!("rates-{n}"), rates.into_iter().enumerate().map(apart).collect());
        let check: CheckRequest = [counter(&limit, 1)].into_iter().collect();
        let admitted = storm(&stores, &check, 3000).await;
        let used = used(&redis, &stores[0], &check[0]);
        rows.push(Row(format!("three rates: {what}"), STORES, 300, 3000, admitted, format!("{used:?}")));
        assert_eq!((admitted, &used[..]), (300, &[300; 3][..]), "{what}");
        assert_eq!(storm_in_memory(&memory, &check, 3000), 300, "{what}");
        let left: Vec<u64> =
            memory.check(&[counter(&limit, 0)]).decisions.iter().map(|one| one.remaining).collect();
        assert_eq!(left, [200, 0, 400], "{what}");
    }
    print(&rows);
}

/// Rates of a few requests a minute, of every algorithm.
fn few() -> Vec<Rate> {
    let n = 7;
    let wait = MaxWait::from_millis(20_000).unwrap();
    let soft = Soft::new(50, 1000).unwrap();
    vec![
        rate(n, MINUTE, Algorithm::SLIDING_WINDOW),
        rate(n, MINUTE, sliding(6, Bound::Estimate)),
        rate(n, MINUTE, sliding(10, Bound::Guaranteed)),
        rate(n, MINUTE, Algorithm::FIXED_WINDOW),
        rate(n, MINUTE, Algorithm::FixedWindow(Alignment::FirstRequest)),
        rate(n, MINUTE, Algorithm::FixedWindow(Alignment::Spread)),
        rate(n, MINUTE, log(0, false)),
        rate(n, MINUTE + 1, log(1500, false)),
        rate(n, MINUTE + 2, log(0, true)),
        rate(n, MINUTE, Algorithm::TokenBucket { burst: burst(n) }),
        rate(n, MINUTE + 1, Algorithm::Gcra { burst: burst(n) }),
        rate(n, MINUTE + 2, Algorithm::LeakyBucket { max_wait: wait }),
        rate(n, MINUTE, Algorithm::WarmUp(WarmUp::new(30_000, 3).unwrap())),
        rate(n, MINUTE + 1, Algorithm::SLIDING_WINDOW).with_soft(soft).unwrap(),
    ]
}

/// Every algorithm by itself, with the next one, and with the next two.
fn combinations() -> Vec<Vec<Rate>> {
    let few = few();
    let (hard, all) = (few.len() - 1, few.len());
    let single = few.iter().map(|rate| vec![*rate]);
    // What is soft may close while others open.
    let several = (2..=3).flat_map(|how_many| {
        let few = &few;
        (0..hard).map(move |from| (from..from + how_many).map(|n| few[n % hard]).collect::<Vec<_>>())
    });
    let combinations: Vec<_> = single.chain(several).collect();
    assert_eq!(combinations.len(), all + 2 * hard);
    combinations
}

/// How long a denied check is told to wait: the longest of those who deny.
fn told(answer: &CheckResponse) -> Option<u64> {
    assert!(!answer.admitted);
    let waits: Vec<_> =
        answer.decisions.iter().filter(|one| !one.admitted).map(|one| one.retry_after).collect();
    waits.into_iter().collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// The wait that Redis tells, and what it has stored: exactly then the same is admitted, and not a microsecond before.
/// (That the script decides as these functions do, at any instant, is what the differential test shows.)
#[tokio::test]
async fn retry_after_from_redis_is_exact_to_the_microsecond() {
    let redis = Redis::start(&[]);
    let store = stores(&redis).swap_remove(0);
    let mut denials = 0;
    for (n, rates) in combinations().into_iter().enumerate() {
        for cost in 1..=7 {
            let limit = limit(&format!("retry-{n}-{cost}"), rates.clone());
            let check: CheckRequest = [counter(&limit, cost)].into_iter().collect();
            let denied = loop {
                let answer = store.check(check.clone()).await.unwrap();
                if !answer.admitted {
                    break answer;
                }
            };
            let wait = told(&denied).unwrap();
            let records: Records = stored(&redis, &store, &check[0]).into();
            let at = |now: u64| decide(&check, &mut [records.clone()], now).admitted;
            assert!(at(denied.at + wait), "not after {wait} us: cost {cost} of {rates:?}, {records:?}");
            assert!(!at(denied.at + wait - 1), "before {wait} us: cost {cost} of {rates:?}, {records:?}");
            denials += 1;
        }
    }
    println!("{denials} denials, each exact");
}

/// The same in memory, where time can be moved: two stores with one history, of which one is asked too early.
#[test]
fn retry_after_from_memory_is_exact_to_the_microsecond() {
    for rates in combinations() {
        for cost in 1..=7 {
            let limit = limit("retry", rates.clone());
            let check = [counter(&limit, cost)];
            let denied = || {
                let clock = Clock::manual(4_000_000_000_123);
                let store = MemoryStore::new(100, clock.clone());
                loop {
                    let answer = store.check(&check);
                    if !answer.admitted {
                        return (store, clock, told(&answer).unwrap());
                    }
                    clock.advance_micros(7919);
                }
            };
            let (store, clock, wait) = denied();
            clock.advance_micros(wait);
            assert!(store.check(&check).admitted, "not after {wait} us: cost {cost} of {rates:?}");
            let (store, clock, wait) = denied();
            clock.advance_micros(wait - 1);
            assert!(!store.check(&check).admitted, "before {wait} us: cost {cost} of {rates:?}");
        }
    }
}

/// The largest value there can be: eight of the longest logs, and eight of another version of the limit.
#[tokio::test]
async fn the_longest_logs_are_counted_to_the_last() {
    let redis = Redis::start(&[]);
    let store = stores(&redis).swap_remove(0);
    let year = long_period();
    let logs = |first: u64| (first..first + 8).map(|n| rate(10_000, year - 60 * n, log(0, false))).collect();
    for first in [0, 8] {
        let limit = limit("long", logs(first));
        let fill: CheckRequest = [counter(&limit, 9_999)].into_iter().collect();
        let one: CheckRequest = [counter(&limit, 1)].into_iter().collect();
        for (check, admitted) in [(&fill, true), (&fill, false), (&one, true), (&one, false)] {
            assert_eq!(store.check(check.clone()).await.unwrap().admitted, admitted);
        }
        assert_eq!(used(&redis, &store, &one[0]), [10_000; 8]);
    }
    let length: u64 = redis.connection().strlen(store.key(&counter(&limit("long", logs(0)), 1))).unwrap();
    assert_eq!(length, 16 * (14 + 6 * 10_000));
}
