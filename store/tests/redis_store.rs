//! The Redis store against a real server.

use std::collections::HashMap;
use std::sync::Arc;

use redis::Commands;
use sluice_limiter::{Algorithm, MAX_PERIOD_MS};
use sluice_store::failure::StoreFault;
use sluice_store::redis::OptionsError;
use sluice_store::{
    Counter, FaultCause, LimitSpec, RedisStore, Settlement, Store as _, StoreError, StoreHealth,
};

use crate::checks::{
    admitted, check, counter, decide, failing, failures, healthy, limit, limit_per, patient, patient_store,
    rate, stored,
};
use crate::support::{Redis, eventually};

crate::servers::pass_with_other_servers!();

const HOUR: u64 = 3_600_000;

/// Returns the time to the end of the current window by the server's clock, in milliseconds.
fn window_left(redis: &Redis, period: u64) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut redis.connection()).unwrap();
    period - (seconds * 1000 + micros / 1000) % period
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn several_stores_together_admit_exactly_the_limit() {
    let redis = Redis::start(&[]);
    // Near the end of the hour, an odd period moves the end of the window elsewhere.
    let period = if window_left(&redis, HOUR) > 30_000 { HOUR } else { HOUR + 61_003 };
    let limit = limit_per("many", 1000, period);
    let stores: Vec<_> = (0..4).map(|_| Arc::new(patient_store(&redis.url()))).collect();
    let callers: Vec<_> = (0..64)
        .map(|n| {
            let (store, limit) = (stores[n % 4].clone(), limit.clone());
            let times = 3000 / 64 + usize::from(n < 3000 % 64);
            tokio::spawn(async move { admitted(&store, &[counter(&limit, 7)], times).await })
        })
        .collect();
    let mut total = 0;
    for caller in callers {
        total += caller.await.unwrap();
    }
    assert_eq!(total, 1000);
    let counter = counter(&limit, 7);
    assert_eq!(stored(&redis, &stores[0], &counter)[0].current, 1000);
    let ttl: i64 = redis.connection().pttl(stores[0].key(&counter)).unwrap();
    assert!(ttl > 0 && ttl as u64 <= 2 * period, "the time to live is {ttl}");
    let merged: u64 = stores.iter().map(|store| store.metrics().merged).sum();
    let (calls, checks) = stores
        .iter()
        .map(|store| store.metrics())
        .fold((0, 0), |sum, metrics| (sum.0 + metrics.calls, sum.1 + metrics.checks));
    assert_eq!(checks, 3000);
    assert!(merged > 0 && calls < checks, "equal checks of concurrent callers merge");
}

#[test]
fn store_works_on_a_current_thread_runtime() {
    let redis = Redis::start(&[]);
    assert!(matches!(RedisStore::start(patient(&redis.url())), Err(OptionsError::NoRuntime)));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let store = patient_store(&redis.url());
        assert_eq!(admitted(&store, &[counter(&limit("single", 3), 1)], 5).await, 3);
        assert_eq!(store.health(), StoreHealth::Healthy);
    });
}

#[tokio::test]
async fn a_check_of_cost_zero_charges_nothing_and_creates_no_key() {
    let redis = Redis::start(&[]);
    let store = patient_store(&redis.url());
    let limit = limit("peek", 1);
    let peek = Counter { cost: 0, ..counter(&limit, 1) };
    assert_eq!(admitted(&store, std::slice::from_ref(&peek), 5).await, 5);
    let exists: bool = redis.connection().exists(store.key(&peek)).unwrap();
    assert!(!exists);
    assert!(decide(&store, &[counter(&limit, 1)]).await.admitted);
    assert!(!decide(&store, &[peek]).await.admitted);
}

#[tokio::test]
async fn counts_survive_an_edit_of_the_limit_and_records_an_edit_of_the_period() {
    let redis = Redis::start(&[]);
    let store = patient_store(&redis.url());
    let (five, three, eight) = (limit("l", 5), limit("l", 3), limit("l", 8));
    assert_eq!(admitted(&store, &[counter(&five, 1)], 4).await, 4);
    assert_eq!(admitted(&store, &[counter(&three, 1)], 2).await, 0);
    assert_eq!(admitted(&store, &[counter(&eight, 1)], 9).await, 4);
    // During a rollout both periods are in use, and both keep their counts. The new one starts with the 8.
    let other = limit_per("l", 10, MAX_PERIOD_MS - 1);
    assert_eq!(admitted(&store, &[counter(&other, 1)], 3).await, 2);
    assert_eq!(admitted(&store, &[counter(&eight, 1)], 1).await, 0);
    assert_eq!(stored(&redis, &store, &counter(&eight, 1)).len(), 2);
}

#[tokio::test]
async fn a_key_that_is_not_a_counter_fails_only_its_own_checks() {
    let redis = Redis::start(&[]);
    let store = patient_store(&redis.url());
    let limit = limit("broken", 5);
    let (list, garbage, cut, long, good) =
        (counter(&limit, 1), counter(&limit, 2), counter(&limit, 3), counter(&limit, 4), counter(&limit, 5));
    assert!(decide(&store, std::slice::from_ref(&cut)).await.admitted);
    let mut connection = redis.connection();
    let mut half: Vec<u8> = connection.get(store.key(&cut)).unwrap();
    half.pop();
    let (): () = connection.set(store.key(&cut), half).unwrap();
    let (): () = connection.rpush(store.key(&list), "x").unwrap();
    let (): () = connection.set(store.key(&garbage), "not a counter at all").unwrap();
    let (): () = connection.set(store.key(&long), vec![0x42u8; 1 << 20]).unwrap();
    let checks = [&list, &garbage, &cut, &long, &good].map(|counter| {
        let check = check(std::slice::from_ref(counter));
        store.check(check)
    });
    let [a, b, c, d, e] = checks;
    let (a, b, c, d, e) = tokio::join!(a, b, c, d, e);
    assert_eq!(a, Err(StoreError::Unavailable(StoreFault::WrongType)));
    for broken in [b, c, d] {
        assert_eq!(broken, Err(StoreError::Unavailable(StoreFault::Nonsense)));
    }
    assert!(e.unwrap().admitted);
    // A check that also has a good counter does not charge it.
    let both = store.check(check(&[good.clone(), list])).await;
    assert_eq!(both, Err(StoreError::Unavailable(StoreFault::WrongType)));
    assert_eq!(stored(&redis, &store, &good)[0].current, 1);
    assert_eq!(store.health(), StoreHealth::Healthy);
    // The metrics count every failed check of such a key, and no correction.
    assert_eq!((failures(&store, "wrong-type"), failures(&store, "nonsense")), (2, 3));
    let wrong = StoreError::Unavailable(StoreFault::WrongType);
    let list = counter(&limit, 1);
    assert_eq!(store.acquire(list.clone(), 3).await.unwrap_err(), wrong);
    let settlement = Settlement {
        limit: limit.clone(),
        key: list.key,
        charged: 0,
        delta: -1,
        overflowed: false,
        least: 0,
    };
    assert_eq!(store.settle(settlement).await, Err(wrong));
    assert_eq!(failures(&store, "wrong-type"), 3);
    assert_eq!((store.metrics().faults.iter().sum::<u64>(), store.metrics().errors), (6, 0));
}

#[tokio::test]
async fn store_survives_a_flush_of_the_scripts() {
    let redis = Redis::start(&[]);
    let store = patient_store(&redis.url());
    let limit = limit("flushed", 100);
    for _ in 0..3 {
        assert_eq!(admitted(&store, &[counter(&limit, 1)], 3).await, 3);
        let (): () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis.connection()).unwrap();
    }
    assert_eq!(store.metrics().errors, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn concurrent_checks_of_many_keys_and_limits_are_counted_exactly() {
    let redis = Redis::start(&[]);
    let store = Arc::new(patient_store(&redis.url()));
    let (shared, own) = (limit("global", 500), limit("client", 40));
    let callers: Vec<_> = (0..40u128)
        .map(|n| {
            let (store, shared, own) = (store.clone(), shared.clone(), own.clone());
            tokio::spawn(async move {
                let both = [counter(&shared, 0), counter(&own, 1 + n % 20)];
                (n % 20, admitted(&store, &both, 30).await)
            })
        })
        .collect();
    let mut by_client = HashMap::<u128, usize>::new();
    for caller in callers {
        let (client, admitted) = caller.await.unwrap();
        *by_client.entry(client).or_default() += admitted;
    }
    assert_eq!(by_client.values().sum::<usize>(), 500);
    assert!(by_client.values().all(|&n| n <= 40));
    for (client, admitted) in by_client {
        let records = stored(&redis, &store, &counter(&own, 1 + client));
        assert_eq!(records[0].current, admitted as u64);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_is_reached_by_its_socket_and_again_after_a_restart() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("redis.sock");
    let mut redis = Redis::start(&["--unixsocket", path.to_str().unwrap()]);
    let store = patient_store(&format!("unix://{}", path.display()));
    healthy(&store).await;
    let counter = [counter(&limit("socket", 5), 1)];
    assert_eq!(admitted(&store, &counter, 7).await, 5);
    redis.kill();
    eventually("the socket is closed", || async {
        store.fault_cause() == Some(FaultCause::ConnectionRefused)
    })
    .await;
    redis.restart();
    healthy(&store).await;
    assert_eq!(admitted(&store, &counter, 7).await, 5, "it has lost its data");
    let nowhere = patient_store(&format!("unix://{}", folder.path().join("none").display()));
    failing(&nowhere, StoreFault::Unreachable).await;
    assert_eq!(nowhere.fault_cause(), Some(FaultCause::ConnectionRefused));
}

/// The largest possible value has eight logs of the maximum length, and eight more from another version of
/// the limit.
#[tokio::test]
async fn the_longest_logs_are_counted_exactly() {
    let redis = Redis::start(&[]);
    let store = patient_store(&redis.url());
    let log = Algorithm::SlidingWindowLog { min_interval: 0 };
    let limit = |first: u64| {
        let rates = (first..first + 8).map(|n| rate(10_000, MAX_PERIOD_MS - 60 * n, log)).collect();
        Arc::new(LimitSpec::new("ns/policy/long", rates))
    };
    for first in [0, 8] {
        let one = counter(&limit(first), 1);
        let fill = Counter { cost: 9_999, ..one.clone() };
        for (check, admitted) in [(&fill, true), (&fill, false), (&one, true), (&one, false)] {
            assert_eq!(decide(&store, std::slice::from_ref(check)).await.admitted, admitted);
        }
    }
    let length: u64 = redis.connection().strlen(store.key(&counter(&limit(0), 1))).unwrap();
    assert_eq!(length, 16 * (14 + 6 * 10_000));
}
