//! The arguments that the functions take from a tenant: no larger ones than those of a sidecar.

use std::sync::Arc;

use redis::{Connection, RedisResult, Value};
use sluice_limiter::{
    Algorithm, Alignment, Bound, Burst, Holder, MAX_CONCURRENT, MAX_COUNT, MAX_PERIOD_MS, MaxWait, Rate,
    Soft, SubWindows, WarmUp,
};
use sluice_store::check::MAX_RATES;
use sluice_store::redis::admin::Administrator;
use sluice_store::redis::library::Library;
use sluice_store::redis::{MAX_ACQUIRED, Script};
use sluice_store::{Counter, KeyHash, LimitSpec, MAX_COUNTERS, Settlement, Store as _};

use super::managed::{provision, store, user_connection};
use crate::checks::{check, healthy, patient, rate};
use crate::support::Redis;

/// Most memory that all refused calls together may take, in bytes.
const LITTLE: u64 = 16 << 20;

/// Numbers that no argument of a sidecar reaches. The second is the largest of MessagePack.
const ABSURD: [u64; 2] = [(1 << 53) + 2, u64::MAX];

const FAR: u64 = 1 << 52;
const SLIDING: u64 = 520;
const SIXTY_SLOTS: u64 = 992;
const CLOCK: u64 = 1024;
const SPREAD: u64 = 1536;
const FIRST_REQUEST: u64 = 2048;
const LOG: u64 = 2560;
const BUCKET: u64 = 3072;
const WARM_UP: u64 = 3584;
const CONCURRENCY: u64 = 4608;
const BLOCK: u64 = 5120;
const RESERVATIONS: u64 = 5632;

/// Encodes numbers as a MessagePack array.
fn packed(numbers: &[u64]) -> Vec<u8> {
    let mut bytes = vec![0xdd];
    bytes.extend((numbers.len() as u32).to_be_bytes());
    for number in numbers {
        bytes.push(0xcf);
        bytes.extend(number.to_be_bytes());
    }
    bytes
}

/// Returns the tag of a kind of records with the longest period that its slots divide.
fn tag(kind: u64) -> u64 {
    ((MAX_PERIOD_MS / 60 * 60) << 13) | kind
}

/// Returns the arguments of a check of one counter, which has one rate of this kind: the numbers that a sidecar sends.
fn checked(kind: u64, requests: u64, parameters: [u64; 5]) -> Vec<u64> {
    let mut numbers = vec![FAR, 1, 1, 1000, 60_000, requests, tag(kind), 1, 1, 1, 1, 1, 1];
    numbers.extend(parameters);
    numbers
}

/// Returns the arguments of a settlement of the same counter.
fn settled(kind: u64, requests: u64, parameters: [u64; 5]) -> Vec<u64> {
    let mut numbers = vec![FAR, 1, 1, 1000, 60_000, requests, tag(kind), 0, 1, 1, 1, 0, 0, 1];
    numbers.extend(parameters);
    numbers
}

/// Returns the arguments of resets of the same counter.
fn resets(times: usize) -> Vec<u64> {
    let limit = [FAR, 1, 1, 1000, 60_000, 10, tag(SLIDING)];
    limit.into_iter().chain([4, 1, 1].repeat(times)).collect()
}

/// Returns the arguments that look at the oldest reservation of a key so many times.
fn looked(times: usize) -> Vec<u64> {
    [FAR, 0].into_iter().chain([5, 1, 0].repeat(times)).collect()
}

/// Returns a call that takes a reservation and corrects its charge by the only operation of another call, under one limit with one
/// rate.
fn taken(correction: &[u64]) -> Vec<u64> {
    let (limit, correction) = correction.split_at(7);
    [limit, &[6, 1, 1, correction.len() as u64], correction].concat()
}

/// Returns the numbers with another one.
fn with(mut numbers: Vec<u64>, at: usize, number: u64) -> Vec<u64> {
    numbers[at] = number;
    numbers
}

/// Returns a group of plain checks.
fn group(requests: u64, tag: u64, callers: u16, checks: u16) -> Vec<u8> {
    let mut bytes: Vec<u8> =
        [FAR, requests, tag].iter().flat_map(|n| n.to_le_bytes().into_iter().take(6)).collect();
    bytes.extend([callers, checks].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend(1000u32.to_le_bytes());
    bytes
}

/// Returns a run whose rates are all equal.
fn run(callers: u16, checks: u16, rates: u8, shared: u8, requests: u64, tag: u64) -> Vec<u8> {
    let mut bytes = FAR.to_le_bytes()[..6].to_vec();
    bytes.extend([callers, checks].iter().flat_map(|n| n.to_le_bytes()));
    bytes.extend([rates, shared]);
    for _ in 0..u32::from(rates) + u32::from(shared) {
        bytes.extend([requests, tag].iter().flat_map(|n| n.to_le_bytes().into_iter().take(6)));
    }
    bytes.resize(bytes.len() + 4 * (usize::from(shared) + 1), 0);
    bytes
}

/// Calls a function with this number of keys of the tenant.
fn call(connection: &mut Connection, script: Script, keys: usize, payload: &[u8]) -> RedisResult<Value> {
    let mut command = redis::cmd("FCALL");
    command.arg(&Library::current().functions()[script as usize]).arg(keys);
    for key in 0..keys {
        command.arg(format!("sluice:shop/p/l:{{0}}:{key}"));
    }
    match command.arg(payload).query(connection)? {
        Value::ServerError(error) => Err(error.into()),
        value => Ok(value),
    }
}

fn size(redis: &Redis) -> u64 {
    redis::cmd("DBSIZE").query(&mut redis.connection()).unwrap()
}

/// Asserts that a call is refused.
fn refused(connection: &mut Connection, script: Script, keys: usize, payload: &[u8], what: &str) {
    let reply = call(connection, script, keys, payload);
    assert!(reply.is_err(), "{script:?}, {what}: {reply:?}");
}

#[tokio::test]
async fn absurd_numbers_are_refused_without_memory_and_change_nothing() {
    let redis = Redis::start(&[]);
    provision(&Administrator::new(patient(&redis.url())).unwrap(), &["shop"]).await;
    let mut tenant = user_connection(&redis, "shop");
    let general = [
        ("a sliding window", checked(SLIDING, 10, [0, 10, 0, 0, 0])),
        ("60 sub-windows", checked(SIXTY_SLOTS, 10, [1, 12, 1000, 0, 0])),
        ("a fixed window", checked(CLOCK, 10, [0, 10, 0, 1, 0])),
        ("a spread window", checked(SPREAD, 10, [5, 10, 0, 0, 0])),
        ("a window of the first request", checked(FIRST_REQUEST, 10, [0, 10, 0, 0, 0])),
        ("a log", checked(LOG, 10, [0, 0, 0, 1, 0])),
        ("a bucket", checked(BUCKET, 10, [1000, 0, 100, 0, 1000])),
        ("a warm-up", checked(WARM_UP, 10, [1000, 2, 100, 0, 0])),
        ("a concurrency limit", checked(CONCURRENCY, 10, [1, 1000, 0, 0, 0])),
        ("a block", checked(BLOCK, 10, [1000, 1000, 0, 0, 0])),
        ("a reservation", checked(RESERVATIONS, MAX_COUNT, [1, 1000, 0, 0, 0])),
        ("a settlement", settled(SLIDING, 10, [0, 10, 0, 0, 0])),
        ("a settlement of a log", settled(LOG, 10, [0, 0, 0, 0, 0])),
        ("a settlement of a bucket", settled(BUCKET, 10, [0, 0, 100, 0, 1000])),
        ("a reset", resets(1)),
        ("resets", resets(MAX_COUNTERS * MAX_RATES)),
        ("a look at a reservation", looked(1)),
        ("looks", looked(MAX_COUNTERS * MAX_RATES)),
        ("the settlement of a reservation", taken(&settled(BUCKET, 10, [0, 0, 100, 0, 1000]))),
        ("one that charges more", taken(&with(checked(SLIDING, 10, [0, 10, 0, 0, 0]), 7, 3))),
    ];
    // All of them are valid before a number is changed.
    for (what, numbers) in &general {
        assert!(call(&mut tenant, Script::General, 1, &packed(numbers)).is_ok(), "{what}");
        let (): () = redis::cmd("FLUSHALL").query(&mut redis.connection()).unwrap();
    }
    let before = redis.peak_memory();
    for (what, numbers) in &general {
        for at in 0..numbers.len() {
            for absurd in ABSURD {
                let mut changed = numbers.clone();
                changed[at] = absurd;
                refused(&mut tenant, Script::General, 1, &packed(&changed), &format!("{what}, number {at}"));
            }
        }
    }
    let (second, no_slots) = (1000 << 13 | SLIDING, 1000 << 13 | 512);
    let log = |requests| checked(LOG, requests, [0, 1, 0, 0, 0]);
    let valid = &general[0].1;
    let taking = taken(&settled(BUCKET, 10, [0, 0, 100, 0, 1000]));
    // A limit of this number of logs; and so many checks of one counter of the limit.
    let rates = |count: u64| {
        let mut numbers = vec![FAR, 1, count, 1000, 60_000];
        (0..count).for_each(|n| numbers.extend([10_000, tag(LOG) - (n << 13)]));
        numbers
    };
    let checks = |mut numbers: Vec<u64>, rates: usize, times: usize, cost: u64| {
        for _ in 0..times {
            numbers.extend([1, 1, 1, 1, cost, 1]);
            numbers.resize(numbers.len() + 5 * rates, 0);
        }
        numbers
    };
    let counters = |number: u64| {
        let mut numbers = [&valid[..7], &[1, number, 1]].concat();
        (0..number).for_each(|_| numbers.extend([1, 1, 1, 0, 10, 0, 0, 0]));
        numbers
    };
    assert!(call(&mut tenant, Script::General, 1, &packed(&counters(32))).is_ok());
    let (): () = redis::cmd("FLUSHALL").query(&mut redis.connection()).unwrap();
    let numbers: Vec<(&str, Vec<u64>)> = vec![
        ("a log of more instants", log(10_001)),
        ("a log of any number of instants", with(log(MAX_COUNT), 11, MAX_COUNT)),
        (
            "more slots that must be there",
            with(settled(CONCURRENCY, 10, [1, 1000, 0, 0, 0]), 12, MAX_CONCURRENT + 1),
        ),
        ("more concurrent requests", checked(CONCURRENCY, MAX_CONCURRENT + 1, [1, 1000, 0, 0, 0])),
        ("a block after more denials", checked(BLOCK, 1001, [1000, 1000, 0, 0, 0])),
        ("a block without time", checked(BLOCK, 10, [0, 1000, 0, 0, 0])),
        ("denials without time", checked(BLOCK, 10, [1000, 0, 0, 0, 0])),
        ("more requests", with(valid.clone(), 5, MAX_COUNT + 1)),
        ("a longer period", with(valid.clone(), 6, (MAX_PERIOD_MS + 1) << 13 | SLIDING)),
        ("no period", with(valid.clone(), 6, SLIDING)),
        ("a width", with(valid.clone(), 6, second + 1)),
        ("no slots", with(valid.clone(), 6, no_slots)),
        ("more slots", with(valid.clone(), 6, tag(SIXTY_SLOTS + 8))),
        ("slots that do not divide the period", with(valid.clone(), 6, 1001 << 13 | 528)),
        ("the record of a soft rate", with(valid.clone(), 6, tag(4096))),
        ("another layout", with(valid.clone(), 6, tag(6144))),
        ("a reservation of nobody", checked(RESERVATIONS, MAX_COUNT, [0, 1000, 0, 0, 0])),
        ("a reservation without time", checked(RESERVATIONS, MAX_COUNT, [1, 0, 0, 0, 0])),
        ("more looks", looked(MAX_COUNTERS * MAX_RATES + 1)),
        ("a look at another key", vec![FAR, 0, 5, 2, 1]),
        ("a look by a longer id", vec![FAR, 0, 5, 1, 1 << 48]),
        ("a taking from another key", with(taking.clone(), 8, 2)),
        ("a taking by no id", with(taking.clone(), 9, 0)),
        ("a taking by a longer id", with(taking.clone(), 9, 1 << 48)),
        ("a taking without a correction", with(taking.clone(), 10, 0)),
        ("a taking with half a correction", with(taking.clone(), 10, 11)),
        ("a taking that checks", with(taking.clone(), 11, 1)),
        ("a taking that resets", with(taking.clone(), 11, 4)),
        ("a taking that takes", with(taking.clone(), 11, 6)),
        ("more callers", with(valid.clone(), 9, MAX_ACQUIRED + 1)),
        ("a larger cost", with(valid.clone(), 11, MAX_COUNT + 2)),
        ("a reset of more numbers", with(valid.clone(), 7, 4)),
        ("another operation", with(valid.clone(), 7, 5)),
        ("a reset without a key", with(resets(1), 8, 0)),
        ("a reset of a key that is not given", with(resets(1), 8, 2)),
        ("a reset without a limit", with(resets(1), 9, 0)),
        ("a reset under a limit that is not given", with(resets(1), 9, 2)),
        ("more resets", resets(MAX_COUNTERS * MAX_RATES + 1)),
        ("no counter", with(valid.clone(), 8, 0)),
        ("a key that is not given", with(valid.clone(), 10, 2)),
        ("no key", with(valid.clone(), 10, 0)),
        ("a limit that is not given", with(valid.clone(), 12, 2)),
        ("a registry without slots", with(valid.clone(), 4, 0)),
        ("a bucket far ahead", checked(BUCKET, 10, [(1 << 51) + 1, 0, 100, 0, 1000])),
        ("a warm-up without time", checked(WARM_UP, 10, [0, 2, 100, 0, 0])),
        ("a warm-up without a cold factor", checked(WARM_UP, 10, [1000, 1, 100, 0, 0])),
        ("more rates", checks(rates(10), 10, 1, 1)),
        ("a limit without rates", vec![FAR, 1, 0, 0, 1000]),
        ("more checks", checks(rates(9), 9, 33, 10_000)),
        ("more counters", counters(MAX_COUNTERS as u64 + 1)),
        ("an operation without its numbers", valid[..valid.len() - 1].to_vec()),
        ("a rate without its numbers", valid[..6].to_vec()),
        ("nothing", vec![]),
    ];
    for (what, numbers) in &numbers {
        refused(&mut tenant, Script::General, 1, &packed(numbers), what);
    }
    refused(&mut tenant, Script::General, 1, &[0xdd, 0, 0, 0, 1, 0xa1, b'x'], "a string");
    refused(&mut tenant, Script::General, 1, &[0xdd, 0, 0, 0, 1, 0xdd, 0, 0, 0, 0], "a list");
    refused(
        &mut tenant,
        Script::General,
        1,
        &[&[0xca], &f32::NAN.to_be_bytes()[..]].concat(),
        "a number alone",
    );
    let not_a_number = [&packed(&valid[..0])[..1], &[0, 0, 0, 1, 0xca], &f32::NAN.to_be_bytes()].concat();
    refused(&mut tenant, Script::General, 1, &not_a_number, "no number");

    for script in [Script::Single, Script::Plain] {
        assert!(call(&mut tenant, script, 1, &group(0, second, 1, 1)).is_ok());
        for (what, payload) in [
            ("more requests", group(MAX_COUNT + 1, second, 1, 1)),
            ("no period", group(10, SLIDING, 1, 1)),
            ("a longer period", group(10, (MAX_PERIOD_MS + 1) << 13 | SLIDING, 1, 1)),
            ("a log", group(10, 1000 << 13 | LOG, 1, 1)),
            ("more callers", group(10, second, MAX_ACQUIRED as u16 + 1, 1)),
            ("more checks", group(10, second, 1, u16::MAX)),
            ("a second group", [group(10, second, 1, 1), group(10, SLIDING, 1, 0)].concat()),
            ("half a group", group(10, second, 1, 1)[..20].to_vec()),
        ] {
            refused(&mut tenant, script, 1, &payload, what);
        }
    }
    assert!(call(&mut tenant, Script::Runs, 1, &run(1, 1, 8, 0, 0, second)).is_ok());
    for (what, payload) in [
        ("more requests", run(1, 1, 1, 0, MAX_COUNT + 1, second)),
        ("no period", run(1, 1, 1, 0, 10, SLIDING)),
        ("a log", run(1, 1, 1, 0, 10, 1000 << 13 | LOG)),
        ("more callers", run(MAX_ACQUIRED as u16 + 1, 1, 1, 0, 10, second)),
        ("more checks", run(1, u16::MAX, 1, 0, 10, second)),
        ("more rates", run(1, 1, 10, 0, 10, second)),
        ("no rates", run(1, 1, 0, 0, 10, second)),
        ("more shared counters", run(1, 1, 1, 32, 10, second)),
        ("a second run", [run(1, 1, 1, 0, 10, second), run(1, 0, 1, 0, 10, SLIDING)].concat()),
        ("half a run", run(1, 1, 1, 0, 10, second)[..14].to_vec()),
    ] {
        refused(&mut tenant, Script::Runs, 1, &payload, what);
    }
    for script in Script::ALL {
        refused(&mut tenant, script, 300, &[], "more keys");
        refused(&mut tenant, script, 1, &vec![0; 100 << 10], "a larger argument");
    }
    assert_eq!(size(&redis), 0, "nothing was written");
    let taken = redis.peak_memory() - before;
    assert!(taken < LITTLE, "{taken} bytes");
}

/// The largest rates of all algorithms.
fn largest_rates() -> Vec<Rate> {
    let most = MAX_PERIOD_MS / 60 * 60;
    let sliding =
        |bound| Algorithm::SlidingWindowCounter { sub_windows: SubWindows::new(60).unwrap(), bound };
    let log = |min_interval| Algorithm::SlidingWindowLog { min_interval };
    let burst = Burst::new(MAX_COUNT).unwrap();
    let max_wait = MaxWait::from_millis(MAX_PERIOD_MS).unwrap();
    vec![
        rate(MAX_COUNT, most, Algorithm::SLIDING_WINDOW),
        rate(MAX_COUNT, most, sliding(Bound::Guaranteed)),
        rate(MAX_COUNT, most, sliding(Bound::Estimate))
            .with_soft(Soft::new(100, MAX_PERIOD_MS).unwrap())
            .unwrap(),
        rate(MAX_COUNT, most, Algorithm::FixedWindow(Alignment::Clock)),
        rate(MAX_COUNT, most, Algorithm::FixedWindow(Alignment::Spread)),
        rate(MAX_COUNT, most, Algorithm::FixedWindow(Alignment::FirstRequest)),
        rate(10_000, most, log(0)).counting_denied().unwrap(),
        rate(MAX_COUNT, most, sliding(Bound::Guaranteed)).counting_denied().unwrap(),
        rate(10_000, most, log(most)),
        rate(MAX_COUNT, most, Algorithm::TokenBucket { burst }),
        rate(MAX_COUNT, most, Algorithm::Gcra { burst }),
        rate(MAX_COUNT, most, Algorithm::LeakyBucket { max_wait }),
        rate(1, most, Algorithm::LeakyBucket { max_wait }),
        rate(MAX_COUNT, most / 100, Algorithm::WarmUp(WarmUp::new(3_600_000, 100).unwrap())),
        rate(MAX_CONCURRENT, most, Algorithm::Concurrency { holder: Holder::new((1 << 48) - 1).unwrap() }),
    ]
}

#[tokio::test]
async fn the_largest_limits_there_are_count_as_functions() {
    let redis = Redis::start(&[]);
    provision(&Administrator::new(patient(&redis.url())).unwrap(), &["shop"]).await;
    let shop = store(&redis.url(), "shop");
    healthy(&shop).await;
    for (n, rate) in largest_rates().into_iter().enumerate() {
        let limit = LimitSpec::new(format!("shop/policy/{n}"), vec![rate]).with_max_keys(u64::MAX);
        let counter = Counter { limit: Arc::new(limit), key: KeyHash(u128::MAX), cost: rate.requests.get() };
        let response = shop.check(check(std::slice::from_ref(&counter))).await.unwrap();
        assert!(response.admitted, "{rate:?}");
        for delta in [i64::MIN, i64::MAX] {
            let (limit, key) = (counter.limit.clone(), counter.key);
            let settlement =
                Settlement { limit, key, charged: response.at, delta, overflowed: delta > 0, least: 0 };
            assert!(shop.settle(settlement).await.is_ok(), "{rate:?}");
        }
        let beyond = Counter { cost: u64::MAX, ..counter.clone() };
        assert!(!shop.check(check(&[beyond])).await.unwrap().admitted, "{rate:?}");
        let one = Counter { cost: 1, key: KeyHash(1), ..counter };
        let granted = shop.acquire(one, MAX_ACQUIRED).await.unwrap().granted;
        assert!(granted > 0, "{rate:?}");
    }

    // As many counters and rates as a check can have. One record takes as much room as eight can.
    let log = |n: u64| rate(10_000, MAX_PERIOD_MS - n, Algorithm::SlidingWindowLog { min_interval: 0 });
    let limit = |n| LimitSpec::new(format!("shop/policy/many-{n}"), (0..8).map(log).collect());
    let counters: Vec<_> = (0..MAX_COUNTERS)
        .map(|n| Counter { limit: Arc::new(limit(n)), key: KeyHash(1), cost: 10_000 })
        .collect();
    let response = shop.check(check(&counters)).await.unwrap();
    assert_eq!((response.admitted, response.decisions.len()), (true, 8 * MAX_COUNTERS));
    assert!(!shop.check(check(&counters)).await.unwrap().admitted);
}
