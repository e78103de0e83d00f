//! The number of calls that the Redis store has in flight. The server is stopped, so that no call completes.

use std::sync::Arc;

use sluice_store::RedisStore;
use sluice_store::Store as _;

use crate::checks::{check, counter, healthy, limit, patient_store};
use crate::support::{Redis, eventually};

crate::servers::pass_with_other_servers!();

/// Sends concurrent checks of different keys. Each handle returns whether its check is admitted.
fn send(store: &Arc<RedisStore>, keys: std::ops::Range<u128>) -> Vec<tokio::task::JoinHandle<bool>> {
    let limit = limit("depth", 10);
    let send = |key| {
        let (store, counter) = (store.clone(), counter(&limit, key));
        tokio::spawn(async move { store.check(check(&[counter])).await.unwrap().admitted })
    };
    keys.map(send).collect()
}

#[tokio::test]
async fn at_most_two_calls_are_in_flight_when_many_checks_wait() {
    let redis = Redis::start(&[]);
    let store = Arc::new(patient_store(&redis.url()));
    healthy(&store).await;
    redis.stop();
    let mut checks = send(&store, 0..2000);
    eventually("two calls are sent", || async { store.metrics().calls == 2 }).await;
    let sent = store.metrics().checks;
    assert!(sent < 1000, "{sent} of 2000 checks in two calls block the server for long");
    // Further checks do not change that.
    checks.extend(send(&store, 2000..2100));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((store.metrics().calls, store.metrics().checks), (2, sent));
    redis.go_on();
    for check in checks {
        assert!(check.await.unwrap());
    }
}

#[tokio::test]
async fn one_call_is_in_flight_when_few_checks_wait() {
    let redis = Redis::start(&[]);
    let store = Arc::new(patient_store(&redis.url()));
    healthy(&store).await;
    redis.stop();
    let mut checks = send(&store, 0..1);
    eventually("a call is sent", || async { store.metrics().calls == 1 }).await;
    checks.extend(send(&store, 1..40));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((store.metrics().calls, store.metrics().checks), (1, 1));
    redis.go_on();
    for check in checks {
        assert!(check.await.unwrap());
    }
    assert_eq!((store.metrics().calls, store.metrics().checks), (2, 40), "all waiting checks share one call");
}

#[tokio::test]
async fn any_number_of_equal_checks_share_one_call() {
    let redis = Redis::start(&[]);
    let store = Arc::new(patient_store(&redis.url()));
    healthy(&store).await;
    redis.stop();
    let limit = limit("equal", 700);
    let send = || {
        let (store, counter) = (store.clone(), counter(&limit, 1));
        tokio::spawn(async move { store.check(check(&[counter])).await.unwrap().admitted })
    };
    let mut checks = vec![send()];
    eventually("a call is sent", || async { store.metrics().calls == 1 }).await;
    checks.extend((0..999).map(|_| send()));
    eventually("the second call is sent", || async { store.metrics().calls == 2 }).await;
    redis.go_on();
    let mut admitted = 0;
    for check in checks {
        admitted += usize::from(check.await.unwrap());
    }
    assert_eq!(admitted, 700);
    let metrics = store.metrics();
    assert_eq!(metrics.checks - metrics.merged, metrics.calls, "each call carried a single entry");
}

#[tokio::test]
async fn no_second_call_is_sent_when_the_waiting_checks_merge() {
    let redis = Redis::start(&[]);
    let store = Arc::new(patient_store(&redis.url()));
    healthy(&store).await;
    redis.stop();
    let limit = limit("merged", 700);
    let send = || {
        let (store, counter) = (store.clone(), counter(&limit, 1));
        tokio::spawn(async move { store.check(check(&[counter])).await.unwrap().admitted })
    };
    // All of them are queued before the worker, which runs on the same thread, takes the first.
    let mut checks: Vec<_> = (0..300).map(|_| send()).collect();
    eventually("a call is sent", || async { store.metrics().calls == 1 }).await;
    assert_eq!(store.metrics().checks, 300);
    checks.extend((0..500).map(|_| send()));
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!((store.metrics().calls, store.metrics().checks), (1, 300));
    redis.go_on();
    let mut admitted = 0;
    for check in checks {
        admitted += usize::from(check.await.unwrap());
    }
    assert_eq!(admitted, 700);
    assert_eq!(
        (store.metrics().calls, store.metrics().checks),
        (2, 800),
        "the remaining checks share one call"
    );
}
