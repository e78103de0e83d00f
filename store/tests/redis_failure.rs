//! The Redis store with servers that are down, slow, full, read-only or send invalid replies.

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use sluice_store::failure::StoreFault;
use sluice_store::redis::Secret;
use sluice_store::{RedisOptions, RedisStore, Store as _, StoreError, StoreHealth};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

use crate::checks::{
    admitted, check, counter, decide, failing, failures, healthy, limit, patient, patient_store, quick_store,
    stored,
};
use crate::support::{Redis, eventually, quiet_port};

crate::servers::pass_with_other_servers!();

#[tokio::test]
async fn store_recovers_when_redis_restarts_empty() {
    let mut redis = Redis::start(&[]);
    let store = patient_store(&redis.url());
    let limit = limit("restarted", 2);
    assert_eq!(admitted(&store, &[counter(&limit, 1)], 3).await, 2);
    redis.restart();
    eventually("a check succeeds", || async {
        store.check(check(&[counter(&limit, 1)])).await.is_ok_and(|response| response.admitted)
    })
    .await;
    assert_eq!(admitted(&store, &[counter(&limit, 1)], 3).await, 1);
    assert!(store.metrics().reconnects >= 1);
}

#[tokio::test]
async fn checks_fail_immediately_while_redis_is_down_and_succeed_when_it_is_back() {
    let mut redis = Redis::start(&[]);
    let store = patient_store(&redis.url());
    let limit = limit("killed", 100);
    healthy(&store).await;
    redis.kill();
    let unreachable = StoreError::Unavailable(StoreFault::Unreachable);
    eventually("checks fail", || async {
        store.check(check(&[counter(&limit, 1)])).await == Err(unreachable.clone())
    })
    .await;
    assert!(store.metrics().circuit_open);
    redis.restart();
    healthy(&store).await;
    assert!(decide(&store, &[counter(&limit, 1)]).await.admitted);
    assert!(!store.metrics().circuit_open);
}

#[tokio::test]
async fn store_detects_without_traffic_that_redis_is_down() {
    let mut redis = Redis::start(&[]);
    let store = quick_store(&redis.url());
    healthy(&store).await;
    redis.kill();
    failing(&store, StoreFault::Unreachable).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn checks_that_time_out_while_redis_hangs_are_not_counted_later() {
    let redis = Redis::start(&[]);
    let store = Arc::new(quick_store(&redis.url()));
    let limit = limit("hung", 1_000_000);
    eventually("a check succeeds", || async { store.check(check(&[counter(&limit, 1)])).await.is_ok() })
        .await;
    let before = stored(&redis, &store, &counter(&limit, 1));
    let failed = || failures(&store, "timeout") + failures(&store, "slow");
    let failed_before = failed();
    redis.stop();
    let callers: Vec<_> = (0..50)
        .map(|_| {
            let (store, limit) = (store.clone(), limit.clone());
            tokio::spawn(async move {
                for _ in 0..20 {
                    match store.check(check(&[counter(&limit, 1)])).await {
                        Err(StoreError::Timeout | StoreError::Unavailable(StoreFault::Slow)) => {}
                        other => panic!("{other:?} from a stopped server"),
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
    assert_eq!(failed() - failed_before, 50 * 20, "every failure is counted");
    redis.go_on();
    healthy(&store).await;
    // The calls sent before have run by now: the server reads them before it accepts this connection.
    assert_eq!(stored(&redis, &store, &counter(&limit, 1)), before);
    eventually("a check succeeds", || async { store.check(check(&[counter(&limit, 1)])).await.is_ok() })
        .await;
}

#[tokio::test]
async fn store_reports_a_wrong_password_and_works_with_the_right_one() {
    let redis = Redis::start(&["--requirepass", "right"]);
    let with =
        |password: &str| RedisOptions { password: Some(Secret::new(password)), ..patient(&redis.url()) };
    let store = RedisStore::start(with("wrong")).unwrap();
    failing(&store, StoreFault::Refused).await;
    let response = store.check(check(&[counter(&limit("l", 1), 1)])).await;
    assert_eq!(response, Err(StoreError::Unavailable(StoreFault::Refused)));
    let none = patient_store(&redis.url());
    failing(&none, StoreFault::Refused).await;
    let right = RedisStore::start(with("right")).unwrap();
    assert!(decide(&right, &[counter(&limit("l", 1), 1)]).await.admitted);
    let in_url = format!("redis://:right@127.0.0.1:{}", redis.port);
    let in_url = patient_store(&in_url);
    assert!(!decide(&in_url, &[counter(&limit("l", 1), 1)]).await.admitted);
}

#[tokio::test]
async fn store_reports_that_redis_is_full_and_recovers_when_there_is_memory() {
    let redis = Redis::start(&["--maxmemory-policy", "noeviction"]);
    let store = patient_store(&redis.url());
    let limit = limit("full", 10);
    healthy(&store).await;
    let set = |value: &str| {
        let mut command = redis::cmd("CONFIG");
        let (): () = command.arg("SET").arg("maxmemory").arg(value).query(&mut redis.connection()).unwrap();
    };
    set("1");
    let response = store.check(check(&[counter(&limit, 1)])).await;
    assert_eq!(response, Err(StoreError::Unavailable(StoreFault::ReadOnly)));
    failing(&store, StoreFault::ReadOnly).await;
    set("0");
    healthy(&store).await;
    assert_eq!(admitted(&store, &[counter(&limit, 1)], 11).await, 10);
}

#[tokio::test]
async fn store_reports_a_read_only_replica_and_recovers_when_it_is_promoted() {
    let master = Redis::start(&[]);
    let replica = Redis::start(&["--replicaof", "127.0.0.1", &master.port.to_string()]);
    let store = patient_store(&replica.url());
    let limit = limit("replica", 10);
    let read_only = StoreError::Unavailable(StoreFault::ReadOnly);
    eventually("checks fail as read-only", || async {
        store.check(check(&[counter(&limit, 1)])).await == Err(read_only.clone())
    })
    .await;
    failing(&store, StoreFault::ReadOnly).await;
    let (): () = redis::cmd("REPLICAOF").arg("NO").arg("ONE").query(&mut replica.connection()).unwrap();
    healthy(&store).await;
    assert_eq!(admitted(&store, &[counter(&limit, 1)], 11).await, 10);
}

#[tokio::test]
async fn store_survives_a_server_that_sends_invalid_replies() {
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
                    let mut request = [0; 4096];
                    while stream.read(&mut request).is_ok_and(|n| n > 0) && stream.write_all(garbage).is_ok()
                    {
                        if garbage.is_empty() {
                            return;
                        }
                    }
                });
            }
        });
        let store = quick_store(&format!("redis://127.0.0.1:{port}"));
        let limit = limit("garbage", 10);
        eventually("the store fails", || async {
            let response = store.check(check(&[counter(&limit, 1)])).await;
            assert!(response.is_err(), "{response:?} after {garbage:?}");
            matches!(
                store.health(),
                StoreHealth::Failing(StoreFault::Nonsense | StoreFault::Unreachable | StoreFault::Slow)
            )
        })
        .await;
    }
}

/// Starts a proxy to a Redis that delays every reply. Returns its URL and the number of connections to it.
async fn slow_proxy(redis: &Redis, delay: Duration) -> (String, Arc<AtomicUsize>) {
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
                let ((mut requests, mut client), (mut replies, mut server)) =
                    (client.into_split(), server.into_split());
                let forward = tokio::io::copy(&mut requests, &mut server);
                let delay_replies = async {
                    let mut reply = [0; 4096];
                    loop {
                        let length = replies.read(&mut reply).await?;
                        tokio::time::sleep(delay).await;
                        if length == 0 {
                            return Ok(0);
                        }
                        client.write_all(&reply[..length]).await?;
                    }
                };
                let _ = tokio::try_join!(forward, delay_replies);
            });
        }
    });
    (url, connections)
}

#[tokio::test]
async fn a_server_slower_than_the_budget_never_looks_healthy() {
    let redis = Redis::start(&[]);
    // Makes the server compile the script, so that its first call is as fast as any.
    healthy(&patient_store(&redis.url())).await;
    // Longer than the budget, but shorter than the timeout of the first call of a connection.
    let (url, connections) = slow_proxy(&redis, Duration::from_millis(60)).await;
    let store = quick_store(&url);
    eventually("the store reconnects several times", || async {
        assert_ne!(store.health(), StoreHealth::Healthy);
        connections.load(Relaxed) > 2
    })
    .await;
    assert!(matches!(store.health(), StoreHealth::Failing(_)));
    assert_eq!(store.metrics().reconnects, 0, "none of these connections closed the circuit");
}

#[tokio::test]
async fn store_reports_a_closed_port_and_an_unknown_host() {
    let store = quick_store(&format!("redis://127.0.0.1:{}", quiet_port()));
    failing(&store, StoreFault::Unreachable).await;
    let store = quick_store("redis://no-such-host.invalid:6379");
    failing(&store, StoreFault::Unreachable).await;
}
