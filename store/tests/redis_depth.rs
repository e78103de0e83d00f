//! How many calls the Redis store has on their way. The server is stopped, so that what is sent stays unanswered.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "support/checks.rs"]
mod checks;
mod support;

use std::sync::Arc;

use checks::{check, counter, healthy, limit, patient};
use sluice_store::{RedisOptions, RedisStore};
use support::{Redis, eventually};

/// So many checks of different keys at once; whether each is admitted.
fn ask(store: &Arc<RedisStore>, keys: std::ops::Range<u128>) -> Vec<tokio::task::JoinHandle<bool>> {
    let limit = limit("depth", 10);
    let ask = |key| {
        let (store, counter) = (store.clone(), counter(&limit, key));
        tokio::spawn(async move { store.check(check(&[counter])).await.unwrap().admitted })
    };
    keys.map(ask).collect()
}

#[tokio::test]
async fn store_has_two_calls_on_their_way_when_much_waits_and_no_more() {
    let redis = Redis::start(&[]);
    let store = Arc::new(RedisStore::start(patient(RedisOptions::new(redis.url()))).unwrap());
    healthy(&store).await;
    redis.stop();
    let mut asked = ask(&store, 0..2000);
    eventually("two calls are sent", || async { store.metrics().calls == 2 }).await;
    let sent = store.metrics().checks;
    assert!(sent < 1000, "{sent} of 2000 checks in two calls block the server for long");
    // More does not change that.
    asked.extend(ask(&store, 2000..2100));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((store.metrics().calls, store.metrics().checks), (2, sent));
    redis.go_on();
    for one in asked {
        assert!(one.await.unwrap());
    }
}

#[tokio::test]
async fn store_has_one_call_on_its_way_when_little_waits() {
    let redis = Redis::start(&[]);
    let store = Arc::new(RedisStore::start(patient(RedisOptions::new(redis.url()))).unwrap());
    healthy(&store).await;
    redis.stop();
    let mut asked = ask(&store, 0..1);
    eventually("a call is sent", || async { store.metrics().calls == 1 }).await;
    asked.extend(ask(&store, 1..40));
    for _ in 0..100 {
        tokio::task::yield_now().await;
    }
    assert_eq!((store.metrics().calls, store.metrics().checks), (1, 1));
    redis.go_on();
    for one in asked {
        assert!(one.await.unwrap());
    }
    assert_eq!((store.metrics().calls, store.metrics().checks), (2, 40), "all that waited went together");
}

#[tokio::test]
async fn store_sends_equal_checks_of_any_number_in_one_call() {
    let redis = Redis::start(&[]);
    let store = Arc::new(RedisStore::start(patient(RedisOptions::new(redis.url()))).unwrap());
    healthy(&store).await;
    redis.stop();
    let limit = limit("equal", 700);
    let ask = || {
        let (store, counter) = (store.clone(), counter(&limit, 1));
        tokio::spawn(async move { store.check(check(&[counter])).await.unwrap().admitted })
    };
    let mut asked = vec![ask()];
    eventually("a call is sent", || async { store.metrics().calls == 1 }).await;
    asked.extend((0..999).map(|_| ask()));
    eventually("the second call is sent", || async { store.metrics().calls == 2 }).await;
    redis.go_on();
    let mut admitted = 0;
    for one in asked {
        admitted += usize::from(one.await.unwrap());
    }
    assert_eq!(admitted, 700);
    let metrics = store.metrics();
    assert_eq!(metrics.checks - metrics.merged, metrics.calls, "each call carried a single question");
}

#[tokio::test]
async fn store_sends_no_second_call_where_what_waits_merges() {
    let redis = Redis::start(&[]);
    let store = Arc::new(RedisStore::start(patient(RedisOptions::new(redis.url()))).unwrap());
    healthy(&store).await;
    redis.stop();
    let limit = limit("merged", 700);
    let ask = || {
        let (store, counter) = (store.clone(), counter(&limit, 1));
        tokio::spawn(async move { store.check(check(&[counter])).await.unwrap().admitted })
    };
    // All of them wait before the store's task, on the same thread, takes the first.
    let mut asked: Vec<_> = (0..300).map(|_| ask()).collect();
    eventually("a call is sent", || async { store.metrics().calls == 1 }).await;
    assert_eq!(store.metrics().checks, 300);
    asked.extend((0..500).map(|_| ask()));
    for _ in 0..1000 {
        tokio::task::yield_now().await;
    }
    assert_eq!((store.metrics().calls, store.metrics().checks), (1, 300));
    redis.go_on();
    let mut admitted = 0;
    for one in asked {
        admitted += usize::from(one.await.unwrap());
    }
    assert_eq!(admitted, 700);
    assert_eq!((store.metrics().calls, store.metrics().checks), (2, 800), "the rest went together");
}
