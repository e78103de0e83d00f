//! Limiters that continue with the local usage of a predecessor.

use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

use super::fake_store::FakeStore;
use super::{DAY, Limiter, admitted, counter, limiter, plan, until, until_flushed};
use crate::limiter::check::LimiterOptions;
use crate::plan::Consistency;

#[tokio::test(start_paused = true)]
async fn local_usage_moves_to_the_successor_and_is_flushed_once() {
    let (old_store, new_store) = (FakeStore::new(), FakeStore::new());
    let local = plan("n/p/l", &[(100, DAY)], Consistency::Local);
    let strict = plan("n/p/s", &[(100, DAY)], Consistency::Strict);
    let old = limiter(&old_store);
    // A response shows the store's time, which the successor adopts.
    assert_eq!(admitted(&old, &[counter(&strict, 2)], 1).await, 1);
    assert_eq!(admitted(&old, &[counter(&local, 1)], 30).await, 30);
    old_store.unreachable.store(true, SeqCst);
    new_store.unreachable.store(true, SeqCst);
    assert_eq!(admitted(&old, &[counter(&strict, 1)], 20).await, 20);
    let new = Limiter::start(new_store.clone(), &LimiterOptions::default(), Some(&old));
    // Requests that still use the predecessor count too.
    assert_eq!(admitted(&old, &[counter(&local, 1)], 10).await, 10);
    assert_eq!(admitted(&old, &[counter(&strict, 1)], 10).await, 10);
    assert_eq!(admitted(&new, &[counter(&local, 1)], 100).await, 60);
    assert_eq!(admitted(&new, &[counter(&strict, 1)], 10).await, 10);
    // The predecessor flushes nothing, neither when its store is back nor when it is closed.
    let calls = old_store.calls.load(SeqCst);
    old_store.unreachable.store(false, SeqCst);
    tokio::time::sleep(Duration::from_secs(5)).await;
    old.close().await;
    assert_eq!((old_store.calls.load(SeqCst), new.metrics().unwrap().local_quota.pending), (calls, 1));
    drop(old);
    new_store.unreachable.store(false, SeqCst);
    until_flushed(&new).await;
    assert_eq!(new_store.used(&strict, 1), [40]);
    assert_eq!(admitted(&new, &[counter(&strict, 1)], 100).await, 60);
    assert_eq!(admitted(&new, &[counter(&local, 1)], 10).await, 0);
}

#[tokio::test(start_paused = true)]
async fn the_successor_flushes_usage_whose_flush_by_the_predecessor_fails() {
    let (old_store, new_store) = (FakeStore::new(), FakeStore::new());
    let strict = plan("n/p/s", &[(100, DAY)], Consistency::Strict);
    let old = limiter(&old_store);
    assert_eq!(admitted(&old, &[counter(&strict, 2)], 1).await, 1);
    old_store.unreachable.store(true, SeqCst);
    assert_eq!(admitted(&old, &[counter(&strict, 1)], 20).await, 20);
    old_store.block_calls();
    let calls = old_store.calls.load(SeqCst);
    old_store.unreachable.store(false, SeqCst);
    until("the predecessor flushes", || old_store.calls.load(SeqCst) > calls).await;
    let new = Limiter::start(new_store.clone(), &LimiterOptions::default(), Some(&old));
    tokio::time::sleep(Duration::from_secs(5)).await;
    assert_eq!(new_store.calls.load(SeqCst), 0, "the flush of the predecessor may still succeed");
    old_store.permits.close();
    until_flushed(&new).await;
    assert_eq!((new_store.used(&strict, 1), new.metrics().unwrap().local_quota.flushed), (vec![20], 1));
}
