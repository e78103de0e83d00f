use std::sync::Arc;
use std::time::Duration;

use sluice_limiter::{Algorithm, Alignment, Period, Rate, Requests};

use super::last_known_usage::FlushedRate;
use super::local_quota::LocalQuota;
use crate::check::{KeyHash, LimitSpec};
use crate::plan::Replica;
use crate::plan::Replicas;
use crate::plan::{Consistency, LimitPlan, OnStoreFailure, PlannedCounter};

const DAY: u64 = 86_400_000;

#[tokio::test(start_paused = true)]
async fn each_rate_is_shared_by_the_replicas_of_its_own_last_period() {
    let rate = |requests, millis| {
        let (requests, period) = (Requests::new(requests).unwrap(), Period::from_millis(millis).unwrap());
        Rate::new(requests, period, Algorithm::FIXED_WINDOW).unwrap()
    };
    let spec = Arc::new(LimitSpec::new("n/p/l", vec![rate(100, 1_000), rate(10_000, DAY)]));
    let replicas = Replicas::new(Replica::new(0, 100));
    let plan = LimitPlan::new(spec, Consistency::Local, OnStoreFailure::Share, false, replicas.clone());
    let counter = PlannedCounter { limit: Arc::new(plan), key: KeyHash(1), cost: 1 };
    let quota = LocalQuota::new(10, 10);
    let second = |n: u64| 1_700_000_000_000_000 + n * 1_000_000;
    let admitted = |at| {
        std::iter::repeat_with(|| quota.check(&[&counter], at))
            .take_while(|response| response.admitted)
            .count()
    };
    assert_eq!(admitted(second(0)), 1);
    tokio::time::advance(Duration::from_secs(1)).await;
    replicas.set(Replica::new(0, 10));
    assert_eq!(admitted(second(1)), 1, "the replicas that left have used their shares of the last second");
    tokio::time::advance(Duration::from_secs(2)).await;
    assert_eq!(admitted(second(3)), 10);
    // The day is still shared by 100 replicas.
    assert_eq!((4..30).map(|n| admitted(second(n))).sum::<usize>(), 100 - 12);
    tokio::time::advance(Duration::from_millis(DAY)).await;
    let tomorrow = second(2 * DAY / 1_000);
    assert_eq!((0..110).map(|n| admitted(tomorrow + n * 1_000_000)).sum::<usize>(), 1_000);
}

/// A counter in the store that admits ten a day, of which this replica has all.
fn ten_a_day(algorithm: Algorithm) -> PlannedCounter {
    let (requests, period) = (Requests::new(10).unwrap(), Period::from_millis(DAY).unwrap());
    let rate = Rate::new(requests, period, algorithm).unwrap();
    let spec = Arc::new(LimitSpec::new("n/p/l", vec![rate]));
    let replicas = Replicas::new(Replica::new(0, 1));
    let plan = LimitPlan::new(spec, Consistency::Strict, OnStoreFailure::Share, false, replicas);
    PlannedCounter { limit: Arc::new(plan), key: KeyHash(1), cost: 1 }
}

#[tokio::test]
async fn usage_whose_flush_fails_over_the_edge_of_a_window_stays_in_its_window() {
    let rates = [
        Algorithm::FIXED_WINDOW,
        Algorithm::SLIDING_WINDOW,
        Algorithm::FixedWindow(Alignment::FirstRequest),
        Algorithm::SlidingWindowLog { min_interval: 0 },
    ];
    for algorithm in rates {
        let counter = ten_a_day(algorithm);
        let (quota, edge) = (LocalQuota::new(10, 10), 19_700 * DAY * 1000);
        let admit = |at| (0..11).filter(|_| quota.check(&[&counter], at).admitted).count();
        assert_eq!(admit(edge - 30_000), 10, "{algorithm:?}");
        let begin = |at| quota.begin_flush(counter.counter_id(), at).and_then(|(_, flush)| flush);
        let failed = begin(edge - 20_000).unwrap();
        quota.finish_flush(&failed, &[], 0, edge + 30_000);
        let usage = |at| {
            begin(at).map_or(0, |flush| {
                let admitted = flush.usages.iter().map(|usage| usage.admitted).sum::<u64>();
                quota.finish_flush(&flush, &[], 0, at);
                admitted
            })
        };
        let is_fixed = algorithm == Algorithm::FIXED_WINDOW;
        assert_eq!(usage(edge + 40_000), if is_fixed { 0 } else { 10 }, "{algorithm:?}");
        // It has not begun anew in the next window.
        assert!(begin(edge + DAY * 1000).is_none(), "{algorithm:?}");
    }
}

#[tokio::test]
async fn a_flush_of_a_forgotten_counter_does_not_touch_the_one_that_began_after_it() {
    let counter = ten_a_day(Algorithm::FIXED_WINDOW);
    let (quota, now) = (LocalQuota::new(10, 10), 1_700_000_000_000_000);
    let admit = |times: usize| (0..times).filter(|_| quota.check(&[&counter], now).admitted).count();
    let begin = || quota.begin_flush(counter.counter_id(), now).unwrap().1.unwrap();
    assert_eq!(admit(7), 7);
    let old = begin();
    quota.forget(&counter);
    assert_eq!((quota.pending(), admit(3)), (0, 3));
    let new = begin();
    // The old flush has failed: its usage is not put back.
    quota.finish_flush(&old, &[], 0, now);
    assert_eq!(new.usages.iter().map(|usage| usage.admitted).sum::<u64>(), 3);
    quota.finish_flush(&new, &[FlushedRate { rate: 0, then: Some((3, now)) }], 0, now);
    assert_eq!((quota.pending(), quota.metrics().flushed), (0, 1));
}

#[tokio::test]
async fn a_counter_whose_key_is_broken_is_not_flushed_again_at_once() {
    let counter = ten_a_day(Algorithm::FIXED_WINDOW);
    let (quota, now) = (LocalQuota::new(10, 10), 1_700_000_000_000_000);
    assert!(quota.check(&[&counter], now).admitted);
    let fail = |flush_after| {
        let flush = quota.begin_flush(counter.counter_id(), now).unwrap().1.unwrap();
        quota.finish_flush(&flush, &[], flush_after, now);
    };
    fail(0);
    assert_eq!(quota.some_pending(9, 5).len(), 1);
    fail(10);
    assert_eq!((quota.some_pending(9, 9).len(), quota.pending()), (0, 1));
    assert_eq!(quota.some_pending(9, 10).len(), 1);
}

#[tokio::test]
async fn an_outage_begins_with_what_the_flush_of_the_one_before_has_added() {
    let counter = ten_a_day(Algorithm::FIXED_WINDOW);
    let (quota, now) = (LocalQuota::new(10, 10), 1_700_000_000_000_000);
    let admit = || (0..11).filter(|_| quota.check(&[&counter], now).admitted).count();
    assert_eq!(admit(), 10);
    let flush = quota.begin_flush(counter.counter_id(), now).unwrap().1.unwrap();
    let then = flush.usages[0].then_in_store(Some(0));
    assert_eq!(then, Some(10));
    quota.finish_flush(&flush, &[FlushedRate { rate: 0, then: then.map(|then| (then, now)) }], 0, now);
    // The store goes away again before it has answered a check of the key.
    assert_eq!(admit(), 0);
}
