//! The life of a counter beside checks: refunds, edits, resets, expiry, and limits of keys.

use std::sync::Arc;

use sluice_limiter::{Algorithm, Alignment, MAX_PERIOD_MS, partition_share};
use sluice_store::{Counter, LimitSpec, Settlement, Store as _};

use super::{KEY, MINUTE, Subject, admitted, burst, client, counter, decide, limit, rate, remaining, yearly};

pub(super) async fn what_costs_nothing_charges_nothing(subject: &impl Subject) {
    let store = &*subject.clients()[0];
    let nothing = decide(store, &[]).await;
    assert!(nothing.admitted && nothing.decisions.is_empty());
    let limit = yearly("free", 1);
    assert_eq!(admitted(store, &[counter(&limit, 0)], 5).await, 5);
    assert_eq!(admitted(store, &[counter(&limit, 1)], 5).await, 1);
    assert!(!decide(store, &[counter(&limit, 0)]).await.admitted);
}

pub(super) async fn an_acquisition_is_as_many_checks(subject: &impl Subject) {
    let store = &*subject.clients()[0];
    let limit = yearly("acquired", 10);
    for (cost, times, granted, left) in [(2, 3, 3, 4), (3, 5, 1, 1), (2, 1, 0, 1), (1, 4, 1, 0)] {
        let grant = store.acquire(counter(&limit, cost), times).await.unwrap();
        assert_eq!((grant.granted, grant.response.decisions[0].remaining), (granted, left));
    }
}

pub(super) async fn charges_are_corrected(subject: &impl Subject) {
    let store = &*subject.clients()[0];
    let limit = yearly("corrected", 100);
    let charged = decide(store, &[counter(&limit, 10)]).await.at;
    let settle = async |key, delta| {
        let limit = limit.clone();
        store.settle(Settlement { limit, key, charged, delta, overflowed: false, least: 0 }).await.unwrap();
    };
    for (delta, left) in [(5, 85), (-3, 88), (-12, 100), (i64::MIN, 100), (150, 0), (-20, 0), (-40, 10)] {
        settle(KEY, delta).await;
        assert_eq!(
            remaining(store, &limit).await,
            [left],
            "more is charged without room, and less never below nothing"
        );
    }
    let other = client(&limit, 7);
    settle(other.key, -5).await;
    let looked = decide(store, &[Counter { cost: 0, ..other }]).await;
    assert_eq!(looked.decisions[0].remaining, 100, "a refund without a counter does nothing");
}

pub(super) async fn counts_survive_edits(subject: &impl Subject) {
    let store = &*subject.clients()[0];
    let (five, three, eight) = (yearly("edited", 5), yearly("edited", 3), yearly("edited", 8));
    assert_eq!(admitted(store, &[counter(&five, 1)], 4).await, 4);
    assert_eq!(admitted(store, &[counter(&three, 1)], 2).await, 0);
    assert_eq!(admitted(store, &[counter(&eight, 1)], 9).await, 4);
    // During a rollout both periods are in use, and both keep their counts. The new one starts with the 8.
    let other = limit("edited", vec![rate(10, MAX_PERIOD_MS - 1, Algorithm::SLIDING_WINDOW)]);
    assert_eq!(admitted(store, &[counter(&other, 1)], 3).await, 2);
    assert_eq!(admitted(store, &[counter(&eight, 1)], 1).await, 0);
}

pub(super) async fn a_reset_client_has_its_whole_quota(subject: &impl Subject) {
    let store = &*subject.clients()[0];
    for (n, algorithm) in [
        Algorithm::SLIDING_WINDOW,
        Algorithm::SlidingWindowLog { min_interval: 0 },
        Algorithm::TokenBucket { burst: burst(3) },
    ]
    .into_iter()
    .enumerate()
    {
        let limit = limit(&format!("reset-{n}"), vec![rate(3, MAX_PERIOD_MS, algorithm)]);
        let unknown = store.reset(&limit, KEY).await.unwrap();
        for _ in 0..2 {
            assert_eq!(admitted(store, &[counter(&limit, 1)], 5).await, 3);
            let other = decide(store, &[client(&limit, 1)]).await.at;
            assert!(store.reset(&limit, KEY).await.unwrap() >= other.max(unknown));
        }
        let other = Counter { cost: 0, ..client(&limit, 1) };
        assert_eq!(decide(store, &[other]).await.decisions[0].remaining, 1, "others keep their counts");
    }
}

pub(super) async fn counters_expire(subject: &impl Subject) {
    let store = &*subject.clients()[0];
    let first = Algorithm::FixedWindow(Alignment::FirstRequest);
    let limit = limit("expired", vec![rate(2, 100, first)]);
    let began = decide(store, &[counter(&limit, 2)]).await.at;
    let again = loop {
        let response = decide(store, &[counter(&limit, 1)]).await;
        assert_eq!(response.admitted, response.at / 1000 >= began / 1000 + 100);
        if response.admitted {
            break response;
        }
        subject.pass(1_000);
    };
    assert_eq!(again.decisions[0].remaining, 1);
}

/// New keys beyond the maximum share the counter of their partition.
pub(super) async fn new_keys_beyond_the_maximum_share_a_counter_and_known_keys_stay_exact(
    subject: &impl Subject,
) {
    const CLIENTS: u64 = 400;
    let store = &*subject.clients()[0];
    for (n, algorithm) in
        [Algorithm::SLIDING_WINDOW, Algorithm::TokenBucket { burst: burst(3) }].into_iter().enumerate()
    {
        let spec = LimitSpec::new(format!("ns/policy/keys-{n}"), vec![rate(3, 60 * MINUTE, algorithm)]);
        let limit = Arc::new(spec.with_max_keys(20));
        let most = subject.partitions() * partition_share(20, subject.partitions());
        let (mut known, mut shared) = (Vec::new(), 0);
        for number in 0..CLIENTS {
            let response = decide(store, &[client(&limit, number)]).await;
            if response.key_usages.is_overflowed(0) {
                shared += u64::from(response.admitted);
            } else {
                assert!(response.admitted);
                known.push(number);
            }
        }
        assert!((20..=most).contains(&(known.len() as u64)), "{} keys of at most {most}", known.len());
        assert!(shared <= 3 * subject.partitions(), "{shared}");
        for number in known {
            let one = [client(&limit, number)];
            assert_eq!(admitted(store, &one, 5).await, 2, "a known key keeps a counter of its own");
        }
        let new = Counter { cost: 0, ..client(&limit, CLIENTS) };
        let looked = decide(store, &[new]).await;
        assert!(looked.key_usages.is_overflowed(0), "a look shows the counter that would decide");
    }
}
