//! N is N: for every algorithm, many concurrent clients at many stores are admitted exactly as often as the
//! limit allows. And the retry-after of a denial is exact.
//!
//! The tests print a table of the admitted checks and the counters.

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
    Store as _,
};

use crate::support::Redis;

crate::servers::pass_with_other_servers!();

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

fn log(min_interval: u64) -> Algorithm {
    Algorithm::SlidingWindowLog { min_interval }
}

fn limit(scope: &str, rates: Vec<Rate>) -> Arc<LimitSpec> {
    Arc::new(LimitSpec::new(format!("ns/policy/{scope}"), rates))
}

fn counter(limit: &Arc<LimitSpec>, cost: u64) -> Counter {
    Counter { limit: limit.clone(), key: KEY, cost }
}

/// Returns a period of about a year in which no window ends during a test.
fn long_period() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap();
    let phase = rate(1, MAX_PERIOD_MS, Algorithm::FixedWindow(Alignment::Spread)).phase(KEY.0) / 1000;
    let left = |period: u64, ahead: u64| period - (now.as_millis() as u64 + ahead) % period;
    // All of them can be divided by 60 and by 300.
    let periods = [MAX_PERIOD_MS, MAX_PERIOD_MS - 3_900_000, MAX_PERIOD_MS - 7_800_000];
    let is_quiet =
        |&period: &u64| left(period, 0) > 20 * MINUTE && left(period, phase % period) > 20 * MINUTE;
    periods.into_iter().find(is_quiet).unwrap()
}

/// Returns a rate of every algorithm, and the number of concurrent checks that it admits.
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
        ("slidingWindowLog", rate(n, year, log(0)), n),
        ("slidingWindowLog, countDenied", rate(n, year, log(0)).counting_denied().unwrap(), n),
        (
            "slidingWindowCounter, countDenied",
            rate(n, year, Algorithm::SLIDING_WINDOW).counting_denied().unwrap(),
            n,
        ),
        ("slidingWindowLog, minInterval", rate(n, year, log(year)), 1),
        ("tokenBucket, burst 997", rate(n, year, Algorithm::TokenBucket { burst: burst(n) }), n),
        ("gcra, burst 1", rate(n, year, Algorithm::Gcra { burst: burst(1) }), 1),
        ("leakyBucket, 299 delayed", rate(300, year, Algorithm::LeakyBucket { max_wait: wait }), 300),
        ("warm-up", rate(n, year / 3, Algorithm::WarmUp(WarmUp::new(60_000, 3).unwrap())), 1),
        ("soft, 20 % more", rate(1000, year, Algorithm::SLIDING_WINDOW).with_soft(soft).unwrap(), 1200),
    ]
}

/// Starts stores with a budget so large that a loaded machine does not cause failures.
fn stores(redis: &Redis) -> Vec<Arc<RedisStore>> {
    let latency_budget = Duration::from_secs(10);
    let options = RedisOptions { latency_budget, ..RedisOptions::from_url(&redis.url()).unwrap() };
    (0..STORES).map(|_| Arc::new(RedisStore::start(options.clone()).unwrap())).collect()
}

/// Sends concurrent checks from 200 clients to 8 stores. Returns how many were admitted.
async fn admitted_of(stores: &[Arc<RedisStore>], check: &CheckRequest, times: usize) -> u64 {
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

/// Sends checks from 200 threads to one memory store. Returns how many were admitted.
fn admitted_in_memory_of(store: &MemoryStore, check: &[Counter], times: usize) -> u64 {
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

/// Returns the usage of a limit's counter in Redis by rate: for a leaky bucket the number of reservations,
/// for a warm-up whether the next request is delayed.
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
    for Row(name, stores, n, checks, admitted, counters) in rows {
        println!("| {name} | {stores} | {CLIENTS} | {n} | {checks} | {admitted} | {counters} |");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn two_hundred_clients_at_8_stores_are_admitted_exactly_up_to_the_limit() {
    let redis = Redis::start(&[]);
    let stores = stores(&redis);
    let mut rows = vec![];
    for (n, (name, rate, expected)) in all().into_iter().enumerate() {
        let limit = limit(&format!("one-{n}"), vec![rate]);
        let (check, times) = ([counter(&limit, 1)].into_iter().collect(), 3000);
        let admitted = admitted_of(&stores, &check, times).await;
        let used = used(&redis, &stores[0], &check[0]);
        rows.push(Row(name.to_owned(), STORES, expected, times, admitted, format!("{used:?}")));
        // A window counts all denied checks, and a log has room for the newest.
        let is_window = !matches!(rate.algorithm, Algorithm::SlidingWindowLog { .. });
        let counted = if rate.count_denied && is_window { times as u64 } else { expected };
        assert_eq!((admitted, used[0]), (expected, counted), "{name}");
    }
    print(&rows);
}

#[test]
fn two_hundred_threads_at_a_memory_store_are_admitted_exactly_up_to_the_limit() {
    let store = MemoryStore::new(1000, Clock::system());
    let mut rows = vec![];
    for (n, (name, rate, expected)) in all().into_iter().enumerate() {
        let limit = limit(&format!("one-{n}"), vec![rate]);
        let times = 3000;
        let admitted = admitted_in_memory_of(&store, &[counter(&limit, 1)], times);
        let peek = store.check(&[counter(&limit, 0)]);
        let left = peek.decisions[0].remaining;
        rows.push(Row(name.to_owned(), 1, expected, times, admitted, format!("{left} left")));
        assert_eq!((admitted, peek.admitted), (expected, false), "{name}");
        // A minimum interval denies below the limit.
        assert_eq!(left, if name.contains("minInterval") { 996 } else { 0 }, "{name}");
    }
    print(&rows);
}

/// Returns three limits for one check, with numbers of 500, 300 and 700.
fn three_limits() -> Vec<(&'static str, [Rate; 3])> {
    let year = long_period();
    let window = Algorithm::SLIDING_WINDOW;
    vec![
        ("windows", [rate(500, year, window), rate(300, year, window), rate(700, year, window)]),
        (
            "window, log, bucket",
            [
                rate(500, year, sliding(60, Bound::Estimate)),
                rate(300, year, log(0)),
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

/// The others are charged only for the admitted checks, so the rest of their quota remains.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_smallest_of_three_limits_decides_and_denials_charge_nothing() {
    let redis = Redis::start(&[]);
    let stores = stores(&redis);
    let mut rows = vec![];
    for (n, (name, rates)) in three_limits().into_iter().enumerate() {
        let limits = rates.map(|rate| limit(&format!("three-{n}-{}", rate.requests.get()), vec![rate]));
        let all: CheckRequest = limits.iter().map(|limit| counter(limit, 1)).collect();
        let admitted = admitted_of(&stores, &all, 3000).await;
        let counted: Vec<u64> = all.iter().flat_map(|counter| used(&redis, &stores[0], counter)).collect();
        rows.push(Row(format!("three limits: {name}"), STORES, 300, 3000, admitted, format!("{counted:?}")));
        assert_eq!((admitted, &counted[..]), (300, &[300; 3][..]), "{name}");
        for (limit, rest) in [(&limits[0], 200), (&limits[1], 0), (&limits[2], 400)] {
            let alone: CheckRequest = [counter(limit, 1)].into_iter().collect();
            assert_eq!(admitted_of(&stores, &alone, 1000).await, rest, "{name}");
        }
    }
    print(&rows);
}

#[test]
fn the_smallest_of_three_limits_in_memory_decides_and_denials_charge_nothing() {
    let store = MemoryStore::new(1000, Clock::system());
    for (n, (name, rates)) in three_limits().into_iter().enumerate() {
        let limits = rates.map(|rate| limit(&format!("three-{n}-{}", rate.requests.get()), vec![rate]));
        let all: CheckRequest = limits.iter().map(|limit| counter(limit, 1)).collect();
        assert_eq!(admitted_in_memory_of(&store, &all, 3000), 300, "{name}");
        for (limit, rest) in [(&limits[0], 200), (&limits[1], 0), (&limits[2], 400)] {
            assert_eq!(admitted_in_memory_of(&store, &[counter(limit, 1)], 1000), rest, "{name}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_smallest_of_three_rates_decides() {
    let redis = Redis::start(&[]);
    let (stores, memory) = (stores(&redis), MemoryStore::new(1000, Clock::system()));
    let mut rows = vec![];
    for (n, (name, rates)) in three_limits().into_iter().enumerate() {
        // Rates of one limit need different periods.
        let with_own_period = |(n, rate): (usize, Rate)| {
            let period = Period::from_millis(rate.period.millis() - 60 * n as u64).unwrap();
            Rate::new(rate.requests, period, rate.algorithm).unwrap()
        };
        let limit =
            limit(&format!("rates-{n}"), rates.into_iter().enumerate().map(with_own_period).collect());
        let check: CheckRequest = [counter(&limit, 1)].into_iter().collect();
        let admitted = admitted_of(&stores, &check, 3000).await;
        let used = used(&redis, &stores[0], &check[0]);
        rows.push(Row(format!("three rates: {name}"), STORES, 300, 3000, admitted, format!("{used:?}")));
        assert_eq!((admitted, &used[..]), (300, &[300; 3][..]), "{name}");
        assert_eq!(admitted_in_memory_of(&memory, &check, 3000), 300, "{name}");
        let left: Vec<u64> =
            memory.check(&[counter(&limit, 0)]).decisions.iter().map(|decision| decision.remaining).collect();
        assert_eq!(left, [200, 0, 400], "{name}");
    }
    print(&rows);
}

/// Returns a rate of a few requests per minute of every algorithm.
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
        rate(n, MINUTE, log(0)),
        rate(n, MINUTE + 1, log(1500)),
        rate(n, MINUTE + 2, log(0)).counting_denied().unwrap(),
        rate(n, MINUTE, Algorithm::TokenBucket { burst: burst(n) }),
        rate(n, MINUTE + 1, Algorithm::Gcra { burst: burst(n) }),
        rate(n, MINUTE + 2, Algorithm::LeakyBucket { max_wait: wait }),
        rate(n, MINUTE, Algorithm::WarmUp(WarmUp::new(30_000, 3).unwrap())),
        rate(n, MINUTE + 1, Algorithm::SLIDING_WINDOW).with_soft(soft).unwrap(),
    ]
}

/// Returns every algorithm alone, with the next one, and with the next two.
fn combinations() -> Vec<Vec<Rate>> {
    let few = few();
    let (hard, all) = (few.len() - 1, few.len());
    let single = few.iter().map(|rate| vec![*rate]);
    // A soft rate may lose its extra room while other rates gain room, so it only occurs alone.
    let several = (2..=3).flat_map(|how_many| {
        let few = &few;
        (0..hard).map(move |from| (from..from + how_many).map(|n| few[n % hard]).collect::<Vec<_>>())
    });
    let combinations: Vec<_> = single.chain(several).collect();
    assert_eq!(combinations.len(), all + 2 * hard);
    combinations
}

/// Returns the retry-after of a denied check: the longest of all denying rates.
fn retry_after(response: &CheckResponse) -> Option<u64> {
    assert!(!response.admitted);
    let denials = response.decisions.iter().filter(|decision| !decision.admitted);
    let waits: Vec<_> = denials.map(|decision| decision.retry_after).collect();
    waits.into_iter().collect::<Option<Vec<_>>>()?.into_iter().max()
}

/// The reference admits the check on the stored records exactly then, and not a microsecond before. The
/// differential test proves that the script agrees with the reference.
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
                let response = store.check(check.clone()).await.unwrap();
                if !response.admitted {
                    break response;
                }
            };
            let wait = retry_after(&denied).unwrap();
            let records: Records = stored(&redis, &store, &check[0]).into();
            let at = |now: u64| decide(&check, &mut [records.clone()], now).admitted;
            assert!(at(denied.at + wait), "denied after {wait} us: cost {cost} of {rates:?}, {records:?}");
            assert!(
                !at(denied.at + wait - 1),
                "admitted before {wait} us: cost {cost} of {rates:?}, {records:?}"
            );
            denials += 1;
        }
    }
    println!("{denials} denials with an exact retry-after");
}

/// Two stores have the same history. One is checked after the wait, the other a microsecond before.
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
                    let response = store.check(&check);
                    if !response.admitted {
                        return (store, clock, retry_after(&response).unwrap());
                    }
                    clock.advance_micros(7919);
                }
            };
            let (store, clock, wait) = denied();
            clock.advance_micros(wait);
            assert!(store.check(&check).admitted, "denied after {wait} us: cost {cost} of {rates:?}");
            let (store, clock, wait) = denied();
            clock.advance_micros(wait - 1);
            assert!(!store.check(&check).admitted, "admitted before {wait} us: cost {cost} of {rates:?}");
        }
    }
}

/// The largest possible value has eight logs of the maximum length, and eight more from another version of
/// the limit.
#[tokio::test]
async fn the_longest_logs_are_counted_exactly() {
    let redis = Redis::start(&[]);
    let store = stores(&redis).swap_remove(0);
    let year = long_period();
    let logs = |first: u64| (first..first + 8).map(|n| rate(10_000, year - 60 * n, log(0))).collect();
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

/// Twenty processes try to guess a password, 40 times each, all at once.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn twenty_processes_are_blocked_after_exactly_so_many_denials() {
    let redis = Redis::start(&[]);
    let stores: Vec<_> = (0..3).flat_map(|_| stores(&redis)).take(20).collect();
    let year = long_period();
    let millis = |millis| Period::from_millis(millis).unwrap();
    for (n, algorithm) in [Algorithm::SLIDING_WINDOW, Algorithm::TokenBucket { burst: burst(5) }, log(0)]
        .into_iter()
        .enumerate()
    {
        let block = Rate::block(Requests::new(10).unwrap(), millis(year), millis(year)).unwrap();
        let limit = limit(&format!("block-{n}"), vec![rate(5, year, algorithm), block]);
        let checks = (0..800).map(|n| {
            let (store, check) = (stores[n % 20].clone(), [counter(&limit, 1)].into_iter().collect());
            tokio::spawn(async move { store.check(check).await.unwrap() })
        });
        let (mut admitted, mut denied, mut blocked) = (0, 0, 0);
        for check in checks.collect::<Vec<_>>() {
            let response = check.await.unwrap();
            match &response.decisions[..] {
                _ if response.admitted => admitted += 1,
                [_, block] if block.admitted => denied += 1,
                _ => blocked += 1,
            }
        }
        println!("20 processes, 800 tries: {admitted} admitted, {denied} denied, {blocked} blocked");
        assert_eq!((admitted, denied, blocked), (5, 10, 785));
        let _: () = redis.connection().del(stores[0].key(&counter(&limit, 1))).unwrap();
        let again = stores[0].check([counter(&limit, 1)].into_iter().collect()).await.unwrap();
        assert!(again.admitted, "deleting the key lifts the block");
    }
}
