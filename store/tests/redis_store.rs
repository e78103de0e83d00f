//! The Redis store against real servers that are slow, full, gone or talk nonsense.

#![allow(missing_docs, clippy::unwrap_used)]

mod support;

use std::collections::HashMap;
use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use redis::Commands;
use sluice_limiter::{Algorithm, Period, Rate, Record, Requests};
use sluice_store::failure::StoreFault;
use sluice_store::redis::{OptionsError, Secret};
use sluice_store::{
    CheckRequest, CheckResponse, Counter, KeyHash, LimitSpec, RedisOptions, RedisStore, Settlement,
    StoreError, StoreHealth,
};
use support::{Redis, eventually, free_port};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const HOUR: u64 = 3_600_000;
/// The longest period: no test ends in another window than it began, except once a year and for a few seconds.
const YEAR: u64 = sluice_limiter::MAX_PERIOD_MS;

fn rate(requests: u64, period: u64, algorithm: Algorithm) -> Rate {
    Rate {
        requests: Requests::new(requests).unwrap(),
        period: Period::from_millis(period).unwrap(),
        algorithm,
        soft: None,
    }
}

fn limit(scope: &str, requests: u64, period: u64) -> Arc<LimitSpec> {
    let rates = vec![rate(requests, period, Algorithm::SLIDING_WINDOW)];
    Arc::new(LimitSpec::new(format!("ns/policy/{scope}"), rates))
}

fn counter(limit: &Arc<LimitSpec>, key: u128) -> Counter {
    Counter { limit: limit.clone(), key: KeyHash(key), cost: 1 }
}

fn check(counters: &[Counter]) -> CheckRequest {
    counters.iter().cloned().collect()
}

/// A budget so generous that a loaded machine does not fail a test about something else.
fn patient(url: &str) -> RedisOptions {
    RedisOptions { latency_budget: Duration::from_secs(10), ..RedisOptions::new(url) }
}

fn quick(url: &str) -> RedisOptions {
    RedisOptions { latency_budget: Duration::from_millis(50), ..RedisOptions::new(url) }
}

async fn healthy(store: &RedisStore) {
    eventually("the store is healthy", || async { store.health() == StoreHealth::Healthy }).await;
}

async fn failing(store: &RedisStore, fault: StoreFault) {
    eventually(&format!("the store fails with {fault:?}"), || async {
        store.health() == StoreHealth::Failing(fault)
    })
    .await;
}

/// How many questions were not answered for the reason of this name.
fn faults(store: &RedisStore, name: &str) -> u64 {
    let place = StoreError::ALL.iter().position(|error| error.as_str() == name).unwrap();
    store.metrics().faults[place]
}

async fn ask(store: &RedisStore, counters: &[Counter]) -> CheckResponse {
    store.check(check(counters)).await.unwrap()
}

async fn admitted(store: &RedisStore, counters: &[Counter], times: usize) -> usize {
    let mut admitted = 0;
    for _ in 0..times {
        admitted += usize::from(ask(store, counters).await.admitted);
    }
    admitted
}

/// The records of a counter as they are stored.
fn stored(redis: &Redis, store: &RedisStore, counter: &Counter) -> Vec<Record> {
    let bytes: Vec<u8> = redis.connection().get(store.key(counter)).unwrap();
    Record::decode_all(&bytes).unwrap()
}

/// Milliseconds of the server until the end of a window.
fn window_left(redis: &Redis, period: u64) -> u64 {
    let (seconds, micros): (u64, u64) = redis::cmd("TIME").query(&mut redis.connection()).unwrap();
    period - (seconds * 1000 + micros / 1000) % period
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn store_admits_exactly_the_number_from_many_processes() {
    let redis = Redis::start(&[]);
    // Half a minute before the hour's end, an odd period puts its own end elsewhere.
    let period = if window_left(&redis, HOUR) > 30_000 { HOUR } else { HOUR + 61_003 };
    let limit = limit("many", 1000, period);
    let stores: Vec<_> =
        (0..4).map(|_| Arc::new(RedisStore::start(patient(&redis.url())).unwrap())).collect();
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
    assert!(ttl > 0 && ttl as u64 <= 2 * period, "time to live is {ttl}");
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
        let store = RedisStore::start(patient(&redis.url())).unwrap();
        assert_eq!(admitted(&store, &[counter(&limit("single", 3, YEAR), 1)], 5).await, 3);
        assert_eq!(store.health(), StoreHealth::Healthy);
    });
}

#[tokio::test]
async fn store_decides_all_limits_together_and_a_denial_consumes_nothing() {
    let redis = Redis::start(&[]);
    let store = RedisStore::start(patient(&redis.url())).unwrap();
    let (wide, narrow) = (limit("wide", 100, YEAR), limit("narrow", 2, YEAR));
    let both = [counter(&wide, 1), counter(&narrow, 1)];
    assert_eq!(admitted(&store, &both, 10).await, 2);
    let answer = ask(&store, &both).await;
    assert!(!answer.admitted && answer.decisions[0].admitted && !answer.decisions[1].admitted);
    assert_eq!((answer.decisions[0].remaining, answer.decisions[1].remaining), (98, 0));
    assert!(answer.decisions[1].retry_after.is_some());
    assert_eq!(stored(&redis, &store, &both[0])[0].current, 2);
    assert_eq!(stored(&redis, &store, &both[1])[0].current, 2);
}

#[tokio::test]
async fn store_peeks_without_taking_and_without_a_key() {
    let redis = Redis::start(&[]);
    let store = RedisStore::start(patient(&redis.url())).unwrap();
    let limit = limit("peek", 1, YEAR);
    let peek = Counter { cost: 0, ..counter(&limit, 1) };
    assert_eq!(admitted(&store, std::slice::from_ref(&peek), 5).await, 5);
    let exists: bool = redis.connection().exists(store.key(&peek)).unwrap();
    assert!(!exists);
    assert!(ask(&store, &[counter(&limit, 1)]).await.admitted);
    assert!(!ask(&store, &[peek]).await.admitted);
}

#[tokio::test]
async fn store_admits_an_empty_check() {
    let redis = Redis::start(&[]);
    let store = RedisStore::start(patient(&redis.url())).unwrap();
    let answer = ask(&store, &[]).await;
    assert!(answer.admitted && answer.decisions.is_empty());
}

#[tokio::test]
async fn store_keeps_counts_when_a_number_is_edited_and_records_when_a_period_is() {
    let redis = Redis::start(&[]);
    let store = RedisStore::start(patient(&redis.url())).unwrap();
    let (five, three, eight) = (limit("l", 5, YEAR), limit("l", 3, YEAR), limit("l", 8, YEAR));
    assert_eq!(admitted(&store, &[counter(&five, 1)], 4).await, 4);
    assert_eq!(admitted(&store, &[counter(&three, 1)], 2).await, 0);
    assert_eq!(admitted(&store, &[counter(&eight, 1)], 9).await, 4);
    // During the roll-out of a period both are in use, and neither forgets: the new one begins with the 8.
    let other = limit("l", 10, YEAR - 1);
    assert_eq!(admitted(&store, &[counter(&other, 1)], 3).await, 2);
    assert_eq!(admitted(&store, &[counter(&eight, 1)], 1).await, 0);
    assert_eq!(stored(&redis, &store, &counter(&eight, 1)).len(), 2);
}

#[tokio::test]
async fn store_fails_only_the_check_whose_key_is_no_counter() {
    let redis = Redis::start(&[]);
    let store = RedisStore::start(patient(&redis.url())).unwrap();
    let limit = limit("broken", 5, YEAR);
    let (list, garbage, cut, long, good) =
        (counter(&limit, 1), counter(&limit, 2), counter(&limit, 3), counter(&limit, 4), counter(&limit, 5));
    assert!(ask(&store, std::slice::from_ref(&cut)).await.admitted);
    let mut connection = redis.connection();
    let mut half: Vec<u8> = connection.get(store.key(&cut)).unwrap();
    half.pop();
    let (): () = connection.set(store.key(&cut), half).unwrap();
    let (): () = connection.rpush(store.key(&list), "x").unwrap();
    let (): () = connection.set(store.key(&garbage), "not a counter at all").unwrap();
    let (): () = connection.set(store.key(&long), vec![0x42u8; 1 << 20]).unwrap();
    let asked = [&list, &garbage, &cut, &long, &good].map(|counter| {
        let check = check(std::slice::from_ref(counter));
        store.check(check)
    });
    let [a, b, c, d, e] = asked;
    let (a, b, c, d, e) = tokio::join!(a, b, c, d, e);
    assert_eq!(a, Err(StoreError::Unavailable(StoreFault::WrongType)));
    for broken in [b, c, d] {
        assert_eq!(broken, Err(StoreError::Unavailable(StoreFault::Nonsense)));
    }
    assert!(e.unwrap().admitted);
    // A check that also names a good counter takes nothing from it.
    let both = store.check(check(&[good.clone(), list])).await;
    assert_eq!(both, Err(StoreError::Unavailable(StoreFault::WrongType)));
    assert_eq!(stored(&redis, &store, &good)[0].current, 1);
    assert_eq!(store.health(), StoreHealth::Healthy);
    // Who looks at metrics sees it nevertheless: of these five, and of what else is asked of such a key.
    assert_eq!((faults(&store, "wrong-type"), faults(&store, "nonsense")), (2, 3));
    let wrong = StoreError::Unavailable(StoreFault::WrongType);
    let list = counter(&limit, 1);
    assert_eq!(store.take(list.clone(), 3).await.unwrap_err(), wrong);
    let settlement = Settlement { limit: limit.clone(), key: list.key, charged: 0, delta: -1 };
    assert_eq!(store.settle(settlement).await, Err(wrong));
    assert_eq!(faults(&store, "wrong-type"), 4);
    assert_eq!((store.metrics().faults.iter().sum::<u64>(), store.metrics().errors), (7, 0));
}

#[tokio::test]
async fn store_goes_on_when_scripts_are_flushed() {
    let redis = Redis::start(&[]);
    let store = RedisStore::start(patient(&redis.url())).unwrap();
    let limit = limit("flushed", 100, YEAR);
    for _ in 0..3 {
        assert_eq!(admitted(&store, &[counter(&limit, 1)], 3).await, 3);
        let (): () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis.connection()).unwrap();
    }
    assert_eq!(store.metrics().errors, 0);
}

#[tokio::test]
async fn store_recovers_by_itself_when_redis_restarts_empty() {
    let mut redis = Redis::start(&[]);
    let store = RedisStore::start(patient(&redis.url())).unwrap();
    let limit = limit("restarted", 2, YEAR);
    assert_eq!(admitted(&store, &[counter(&limit, 1)], 3).await, 2);
    redis.restart();
    eventually("a check is answered", || async {
        store.check(check(&[counter(&limit, 1)])).await.is_ok_and(|answer| answer.admitted)
    })
    .await;
    assert_eq!(admitted(&store, &[counter(&limit, 1)], 3).await, 1);
    assert!(store.metrics().reconnects >= 1);
}

#[tokio::test]
async fn store_answers_while_redis_is_gone_and_recovers_when_it_is_back() {
    let mut redis = Redis::start(&[]);
    let store = RedisStore::start(patient(&redis.url())).unwrap();
    let limit = limit("killed", 100, YEAR);
    healthy(&store).await;
    redis.kill();
    let gone = StoreError::Unavailable(StoreFault::Unreachable);
    eventually("checks are refused", || async {
        store.check(check(&[counter(&limit, 1)])).await == Err(gone.clone())
    })
    .await;
    assert!(store.metrics().circuit_open);
    redis.restart();
    healthy(&store).await;
    assert!(ask(&store, &[counter(&limit, 1)]).await.admitted);
    assert!(!store.metrics().circuit_open);
}

#[tokio::test]
async fn store_notices_that_redis_is_gone_without_traffic() {
    let mut redis = Redis::start(&[]);
    let store = RedisStore::start(quick(&redis.url())).unwrap();
    healthy(&store).await;
    redis.kill();
    failing(&store, StoreFault::Unreachable).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn store_counts_nothing_later_that_it_gave_up_while_redis_hung() {
    let redis = Redis::start(&[]);
    let store = Arc::new(RedisStore::start(quick(&redis.url())).unwrap());
    let limit = limit("hung", 1_000_000, YEAR);
    eventually("a check is answered", || async { store.check(check(&[counter(&limit, 1)])).await.is_ok() })
        .await;
    let before = stored(&redis, &store, &counter(&limit, 1));
    let unanswered = || faults(&store, "timeout") + faults(&store, "slow");
    let unanswered_before = unanswered();
    redis.stop();
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let (store, limit) = (store.clone(), limit.clone());
            tokio::spawn(async move {
                for _ in 0..20 {
                    match store.check(check(&[counter(&limit, 1)])).await {
                        Err(StoreError::Timeout | StoreError::Unavailable(StoreFault::Slow)) => {}
                        other => panic!("{other:?} from a server that is stopped"),
                    }
                }
            })
        })
        .collect();
    for caller in callers {
        caller.await.unwrap();
    }
    failing(&store, StoreFault::Slow).await;
    assert!(store.metrics().timeouts >= 3);
    assert_eq!(unanswered() - unanswered_before, 50 * 20, "each of them is counted");
    redis.go_on();
    healthy(&store).await;
    // What was sent before has run by now: the server found it waiting when it went on, this connection came later.
    assert_eq!(stored(&redis, &store, &counter(&limit, 1)), before);
    eventually("a check is answered", || async { store.check(check(&[counter(&limit, 1)])).await.is_ok() })
        .await;
}

#[tokio::test]
async fn store_reports_a_wrong_password_and_recovers_when_it_is_right() {
    let redis = Redis::start(&["--requirepass", "right"]);
    let with =
        |password: &str| RedisOptions { password: Some(Secret::new(password)), ..patient(&redis.url()) };
    let store = RedisStore::start(with("wrong")).unwrap();
    failing(&store, StoreFault::Refused).await;
    let answer = store.check(check(&[counter(&limit("l", 1, YEAR), 1)])).await;
    assert_eq!(answer, Err(StoreError::Unavailable(StoreFault::Refused)));
    let none = RedisStore::start(patient(&redis.url())).unwrap();
    failing(&none, StoreFault::Refused).await;
    let right = RedisStore::start(with("right")).unwrap();
    assert!(ask(&right, &[counter(&limit("l", 1, YEAR), 1)]).await.admitted);
    let in_url = format!("redis://:right@127.0.0.1:{}", redis.port);
    let in_url = RedisStore::start(patient(&in_url)).unwrap();
    assert!(!ask(&in_url, &[counter(&limit("l", 1, YEAR), 1)]).await.admitted);
}

#[tokio::test]
async fn store_reports_that_redis_is_full_and_recovers_when_it_is_not() {
    let redis = Redis::start(&["--maxmemory-policy", "noeviction"]);
    let store = RedisStore::start(patient(&redis.url())).unwrap();
    let limit = limit("full", 10, YEAR);
    healthy(&store).await;
    let set = |value: &str| {
        let mut command = redis::cmd("CONFIG");
        let (): () = command.arg("SET").arg("maxmemory").arg(value).query(&mut redis.connection()).unwrap();
    };
    set("1");
    let answer = store.check(check(&[counter(&limit, 1)])).await;
    assert_eq!(answer, Err(StoreError::Unavailable(StoreFault::ReadOnly)));
    failing(&store, StoreFault::ReadOnly).await;
    set("0");
    healthy(&store).await;
    assert_eq!(admitted(&store, &[counter(&limit, 1)], 11).await, 10);
}

#[tokio::test]
async fn store_reports_a_read_only_replica_and_recovers_when_it_is_promoted() {
    let master = Redis::start(&[]);
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    let store = RedisStore::start(patient(&replica.url())).unwrap();
    let limit = limit("replica", 10, YEAR);
    let read_only = StoreError::Unavailable(StoreFault::ReadOnly);
    eventually("checks are refused as read-only", || async {
        store.check(check(&[counter(&limit, 1)])).await == Err(read_only.clone())
    })
    .await;
    failing(&store, StoreFault::ReadOnly).await;
    let (): () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut replica.connection()).unwrap();
    healthy(&store).await;
    assert_eq!(admitted(&store, &[counter(&limit, 1)], 11).await, 10);
}

#[tokio::test]
async fn store_survives_a_server_that_talks_nonsense() {
    for garbage in [
        &b"HTTP/1.1 400 Bad Request\r\n\r\n"[..],
        b"*1\r\n:5\r\n*1\r\n$-1\r\n",
        b"*3\r\n:1\r\n:2\r\n:3\r\n",
        b":1\r\n:2\r\n:3\r\n",
        b"+OK\r\n+OK\r\n+OK\r\n",
        b"*2\r\n:99999999999999999\r\n:9\r\n",
        b"*99999999\r\n",
        &[0xff; 4096],
        b"",
    ] {
        let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).unwrap();
        let port = listener.local_addr().unwrap().port();
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let Ok(mut stream) = stream else { return };
                std::thread::spawn(move || {
                    let mut asked = [0; 4096];
                    while stream.read(&mut asked).is_ok_and(|n| n > 0) && stream.write_all(garbage).is_ok() {
                        if garbage.is_empty() {
                            return;
                        }
                    }
                });
            }
        });
        let store = RedisStore::start(quick(&format!("redis://127.0.0.1:{port}"))).unwrap();
        let limit = limit("garbage", 10, YEAR);
        eventually("the store fails", || async {
            let answer = store.check(check(&[counter(&limit, 1)])).await;
            assert!(answer.is_err(), "{answer:?} after {garbage:?}");
            matches!(
                store.health(),
                StoreHealth::Failing(StoreFault::Nonsense | StoreFault::Unreachable | StoreFault::Slow)
            )
        })
        .await;
    }
}

/// A way to a Redis on which every answer takes longer than `delay`; and how many connections came.
async fn slow_way(redis: &Redis, delay: Duration) -> (String, Arc<AtomicUsize>) {
    let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await.unwrap();
    let (url, port) = (format!("redis://{}", listener.local_addr().unwrap()), redis.port);
    let connections = Arc::new(AtomicUsize::new(0));
    let count = connections.clone();
    tokio::spawn(async move {
        loop {
            let (client, _) = listener.accept().await.unwrap();
            count.fetch_add(1, Relaxed);
            tokio::spawn(async move {
                let server = tokio::net::TcpStream::connect(("127.0.0.1", port)).await.unwrap();
                let ((mut asked, mut ask), (mut said, mut say)) = (client.into_split(), server.into_split());
                let asking = tokio::io::copy(&mut asked, &mut say);
                let answering = async {
                    let mut answer = [0; 4096];
                    loop {
                        let length = said.read(&mut answer).await?;
                        tokio::time::sleep(delay).await;
                        if length == 0 {
                            return Ok(0);
                        }
                        ask.write_all(&answer[..length]).await?;
                    }
                };
                let _ = tokio::try_join!(asking, answering);
            });
        }
    });
    (url, connections)
}

#[tokio::test]
async fn store_that_is_slower_than_the_budget_does_not_look_healthy_between_two_failures() {
    let redis = Redis::start(&[]);
    // The server knows the script, so that its first call is as fast as any.
    healthy(&RedisStore::start(patient(&redis.url())).unwrap()).await;
    // Longer than the budget, shorter than what the first call of a connection may take.
    let (url, connections) = slow_way(&redis, Duration::from_millis(60)).await;
    let store = RedisStore::start(quick(&url)).unwrap();
    eventually("it is tried again and again", || async {
        assert_ne!(store.health(), StoreHealth::Healthy);
        connections.load(Relaxed) > 5
    })
    .await;
    assert!(matches!(store.health(), StoreHealth::Failing(_)));
    assert_eq!(store.metrics().reconnects, 0, "none of these connections closed the circuit");
}

#[tokio::test]
async fn store_reports_that_nobody_listens() {
    let store = RedisStore::start(quick(&format!("redis://127.0.0.1:{}", free_port()))).unwrap();
    failing(&store, StoreFault::Unreachable).await;
    let store = RedisStore::start(quick("redis://no-such-host.invalid:6379")).unwrap();
    failing(&store, StoreFault::Unreachable).await;
}

/// What a Redis user needs at least for database 0 of a single server.
const RIGHTS: [&str; 7] = ["+evalsha", "+eval", "+time", "+get", "+mget", "+set", "+setrange"];

/// Makes a user of these rights alone, and the URL that names it.
fn set_user(redis: &Redis, name: &str, rights: &[&str]) -> String {
    let mut command = redis::cmd("ACL");
    command.arg("SETUSER").arg(name);
    for word in ["on", ">secret", "resetkeys", "~sluice:*", "resetchannels", "-@all"] {
        command.arg(word);
    }
    let (): () = command.arg(rights).query(&mut redis.connection()).unwrap();
    format!("redis://{name}:secret@127.0.0.1:{}", redis.port)
}

#[tokio::test]
async fn store_is_refused_without_the_right_that_a_database_needs() {
    let redis = Redis::start(&[]);
    let counters = [counter(&limit("database", 10, YEAR), 1)];
    let refused = Err(StoreError::Unavailable(StoreFault::Refused));
    let url = set_user(&redis, "unselecting", &RIGHTS);
    let store = RedisStore::start(patient(&format!("{url}/3"))).unwrap();
    failing(&store, StoreFault::Refused).await;
    assert_eq!(store.check(check(&counters)).await, refused);
    assert_eq!((faults(&store, "refused"), faults(&store, "nonsense")), (1, 0));
    set_user(&redis, "unselecting", &[&RIGHTS[..], &["+select"]].concat());
    healthy(&store).await;
    assert_eq!(admitted(&store, &counters, 2).await, 2);
    // It is that database that is used, and one without a number needs no such right.
    let mut connection = redis.connection();
    let zero: u64 = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    let (): () = redis::cmd("SELECT").arg(3).query(&mut connection).unwrap();
    let three: u64 = redis::cmd("DBSIZE").query(&mut connection).unwrap();
    assert_eq!((zero, three), (0, 1));
    let store = RedisStore::start(patient(&set_user(&redis, "plain", &RIGHTS))).unwrap();
    assert_eq!(admitted(&store, &counters, 2).await, 2);
}

#[tokio::test]
async fn store_reports_a_missing_password_also_where_a_database_is_chosen() {
    let redis = Redis::start(&["--requirepass", "right"]);
    let store = RedisStore::start(patient(&format!("{}/3", redis.url()))).unwrap();
    failing(&store, StoreFault::Refused).await;
}

#[tokio::test]
async fn store_needs_no_more_rights_than_documented() {
    let redis = Redis::start(&[]);
    let set_user =
        |name: &str, rights: &[&str]| RedisStore::start(patient(&set_user(&redis, name, rights))).unwrap();
    // A year-long and a short window, so that keys are written in both ways.
    let fast = rate(1000, 1, Algorithm::FIXED_WINDOW);
    let slow = rate(1000, YEAR, Algorithm::SLIDING_WINDOW);
    let mixed = Arc::new(LimitSpec::new("ns/policy/acl", vec![fast, slow]));
    let plain = limit("acl-plain", 1000, YEAR);
    let both = [counter(&mixed, 1), counter(&plain, 1)];
    let store = set_user("least", &RIGHTS);
    assert_eq!(admitted(&store, &both, 20).await, 20);
    assert_eq!(store.metrics().errors, 0);
    // Each of them is needed.
    for left_out in RIGHTS {
        // EVAL loads the script: without it only a server that knows the script works.
        let (): () = redis::cmd("SCRIPT").arg("FLUSH").query(&mut redis.connection()).unwrap();
        let rights: Vec<_> = RIGHTS.into_iter().filter(|&right| right != left_out).collect();
        let store = set_user("less", &rights);
        eventually(&format!("refused without {left_out}"), || async {
            // A new key that more than one such check may be about is read in another way than one that is there.
            let twice = Counter { cost: 2, ..counter(&plain, rand::random()) };
            let _ = store.check(check(&[twice])).await;
            let _ = store.check(check(&both)).await;
            store.health() == StoreHealth::Failing(StoreFault::Refused)
        })
        .await;
    }
    // Nor is a counter that many checks share taken for one of another type.
    let store = set_user("no-get", &RIGHTS.map(|right| if right == "+get" { "+mget" } else { right }));
    let shared = [counter(&plain, rand::random()), counter(&limit("acl-shared", 1000, YEAR), rand::random())];
    assert_eq!(store.check(check(&shared)).await, Err(StoreError::Unavailable(StoreFault::Refused)));
    // Another prefix is another store's.
    let mut options = patient(&format!("redis://least:secret@127.0.0.1:{}", redis.port));
    options.prefix = "other:".into();
    let store = RedisStore::start(options).unwrap();
    eventually("refused with another prefix", || async {
        store.check(check(&both)).await == Err(StoreError::Unavailable(StoreFault::Refused))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn store_counts_exactly_over_many_keys_and_limits_at_once() {
    let redis = Redis::start(&[]);
    let store = Arc::new(RedisStore::start(patient(&redis.url())).unwrap());
    let (shared, own) = (limit("global", 500, YEAR), limit("client", 40, YEAR));
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
