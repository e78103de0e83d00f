//! The Redis store behind three sentinels that monitor a master and its replica.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis::Value;
use sluice_store::failure::StoreFault;
use sluice_store::redis::{Secret, StoreCredentials};
use sluice_store::{RedisStore, Store as _, StoreError, StoreHealth};

use crate::checks::{admitted, check, counter, failing, healthy, limit, patient, patient_store, used};
use crate::log;
use crate::sentinel::Watched;
use crate::support::{Redis, eventually, quiet_port};

crate::servers::pass_with_other_servers!();

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn store_finds_the_master_and_follows_a_failover() {
    let mut watched = Watched::start();
    let stores: Vec<_> = (0..2).map(|_| Arc::new(patient_store(&watched.url()))).collect();
    for store in &stores {
        healthy(store).await;
    }
    let number = 5000usize;
    let counters = [counter(&limit("watched", number as u64), 1)];
    // Each caller stops at its first error.
    let callers: Vec<_> = (0..4)
        .map(|n| {
            let (store, counters) = (stores[n % 2].clone(), counters.clone());
            tokio::spawn(async move {
                let mut admitted = 0;
                while let Ok(response) = store.check(check(&counters)).await {
                    admitted += usize::from(response.admitted);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                admitted
            })
        })
        .collect();
    eventually("some checks are admitted", || async {
        used_or_none(&watched.master, &stores[0], &counters[0]) > 100
    })
    .await;
    watched.master.kill();
    let died = Instant::now();
    let mut before = 0;
    for caller in callers {
        before += caller.await.unwrap();
    }
    for store in &stores {
        healthy(store).await;
    }
    let down = died.elapsed();
    let survived = used(&mut watched.replica.connection(), &stores[0], &counters[0]) as usize;
    let mut after = 0;
    for _ in 0..number {
        let response = stores[0].check(check(&counters)).await.unwrap();
        if !response.admitted {
            break;
        }
        after += 1;
    }
    let (total, lost) = (before + after, before.saturating_sub(survived));
    println!(
        "down {down:?}; limit {number}, admitted {before} before and {after} after, {lost} lost with the master"
    );
    assert!(before > 0 && total <= number + lost, "{total} admitted of {number}, {lost} of them lost");
    assert_eq!(survived + after, number);
    // The old master returns as a replica without any effect on the stores.
    watched.master.restart();
    eventually("the old master is a replica", || async {
        role(&watched.master).is_some_and(|role| role == "slave")
    })
    .await;
    for store in &stores {
        assert!(!store.check(check(&counters)).await.unwrap().admitted);
        assert!(store.metrics().reconnects >= 1);
    }
}

/// Returns the role of a server, or `None` while it changes its role and closes all connections.
fn role(redis: &Redis) -> Option<String> {
    let mut connection = redis::Client::open(redis.url()).unwrap().get_connection().ok()?;
    let role: Vec<Value> = redis::cmd("ROLE").query(&mut connection).ok()?;
    match role.into_iter().next() {
        Some(Value::BulkString(role)) => String::from_utf8(role).ok(),
        _ => None,
    }
}

fn used_or_none(redis: &Redis, store: &RedisStore, counter: &sluice_store::Counter) -> u64 {
    let exists: bool = redis::cmd("EXISTS").arg(store.key(counter)).query(&mut redis.connection()).unwrap();
    if exists { used(&mut redis.connection(), store, counter) } else { 0 }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stores_are_told_of_a_failover_from_a_running_master() {
    log::keep();
    let watched = Watched::start();
    let stores: Vec<_> = (0..6).map(|_| patient_store(&watched.url())).collect();
    let counters = [counter(&limit("replaced", 1_000_000), 1)];
    for store in &stores {
        assert_eq!(admitted(store, &counters, 3).await, 3);
    }
    eventually("each store listens to a sentinel", || async { listening(&watched, "default") == 6 }).await;
    // A sentinel that closes the connection is left, and another one is listened to.
    for sentinel in &watched.sentinels {
        let mut kill = redis::cmd("CLIENT");
        let _: Value = kill.arg("KILL").arg("TYPE").arg("pubsub").query(&mut sentinel.connection()).unwrap();
    }
    eventually("each store listens again", || async { listening(&watched, "default") == 6 }).await;
    let (): () = redis::cmd("SENTINEL")
        .arg("FAILOVER")
        .arg("main")
        .query(&mut watched.sentinels[0].connection())
        .unwrap();
    let found = |told| log::lines(&["the sentinels have another master", told]).len();
    eventually("all stores have left the old master", || async {
        for store in &stores {
            let _ = store.check(check(&counters)).await;
        }
        found("") == 6
    })
    .await;
    let by_event = found("is_told=true");
    // One that asked by chance in the moment of the failover may have been faster.
    assert!(by_event >= 4, "{by_event} of 6 were told");
    eventually("the replica is the master and counts", || async {
        let mut are_healthy = true;
        for store in &stores {
            let _ = store.check(check(&counters)).await;
            are_healthy &= store.health() == StoreHealth::Healthy;
        }
        are_healthy && used_or_none(&watched.replica, &stores[0], &counters[0]) > 18
    })
    .await;
}

/// Returns how many connections of a user listen to the sentinels.
fn listening(watched: &Watched, user: &str) -> usize {
    let user = format!(" user={user} ");
    let clients = watched.sentinels.iter().map(|sentinel| -> String {
        redis::cmd("CLIENT").arg("LIST").query(&mut sentinel.connection()).unwrap()
    });
    clients
        .map(|list| list.lines().filter(|line| line.contains(" sub=2 ") && line.contains(&user)).count())
        .sum()
}

#[tokio::test]
async fn store_queries_the_next_sentinel_and_reports_the_fault() {
    let watched = Watched::start();
    let limit = limit("next-sentinel", 3);
    let closed = format!("127.0.0.1:{}", quiet_port());
    let store = patient_store(&watched.url().replace("://", &format!("://{closed},")));
    assert_eq!(admitted(&store, &[counter(&limit, 1)], 5).await, 3);
    // An unknown name of the master, a server that is not a sentinel, and a closed port.
    let unknown = patient_store(&watched.url().replace("/main", "/other"));
    failing(&unknown, StoreFault::Nonsense).await;
    let not_a_sentinel = format!("redis+sentinel://127.0.0.1:{}/main", watched.master.port);
    failing(&patient_store(&not_a_sentinel), StoreFault::Nonsense).await;
    failing(&patient_store(&format!("redis+sentinel://{closed}/main")), StoreFault::Unreachable).await;
}

#[tokio::test]
async fn store_behind_sentinels_needs_only_the_documented_rights() {
    let watched = Watched::start();
    let limit = limit("acl", 1000);
    let rights = ["+evalsha", "+eval", "+time", "+get", "+mget", "+set", "+setrange", "+role"];
    let ask = "+sentinel|get-master-addr-by-name";
    let listen = ["+subscribe", "&+promoted-slave", "&+switch-master"];
    watched.set_users(("watcher", &[&[ask], &listen[..]].concat()), ("least", &rights));
    watched.set_users(("deaf", &[ask]), ("less", &rights[..7]));
    watched.set_users(("blind", &listen), ("less", &rights[..7]));
    let with = |user: &str, watcher: &str| {
        let credentials = StoreCredentials {
            username: Some(user.into()),
            password: Some(Secret::new("secret")),
            sentinel_username: Some(watcher.into()),
            sentinel_password: Some(Secret::new("secret")),
            ..StoreCredentials::default()
        };
        RedisStore::start(patient(&watched.url()).with_credentials(credentials).unwrap()).unwrap()
    };
    let store = with("least", "watcher");
    assert_eq!(admitted(&store, &[counter(&limit, 1)], 20).await, 20);
    assert_eq!(store.metrics().errors, 0);
    eventually("it listens", || async { listening(&watched, "watcher") == 1 }).await;
    // Without the right to listen it asks.
    log::keep();
    let deaf = with("least", "deaf");
    assert_eq!(admitted(&deaf, &[counter(&limit, 1)], 20).await, 20);
    let told = || log::lines(&["a planned failover is noticed late"]).len();
    eventually("it says what it lacks", || async { told() == 1 }).await;
    for (user, watcher) in [("less", "watcher"), ("least", "blind")] {
        let store = with(user, watcher);
        failing(&store, StoreFault::Refused).await;
        let response = store.check(check(&[counter(&limit, 1)])).await;
        assert_eq!(response, Err(StoreError::Unavailable(StoreFault::Refused)));
    }
}
