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
    // The answer tells of a new key.
    let spec =
        LimitSpec::new("ns/policy/acquired-keys", vec![rate(3, MAX_PERIOD_MS, Algorithm::SLIDING_WINDOW)]);
    let limit = Arc::new(spec.with_max_keys(20));
    for is_new in [true, false] {
        let grant = store.acquire(client(&limit, 0), 1).await.unwrap();
        let usages = grant.response.key_usages.0;
        assert_eq!((grant.granted, usages.len()), (1, usize::from(is_new)));
        assert!(usages.iter().all(|usage| usage.counter == 0 && usage.used.is_some()), "{usages:?}");
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

/// A charge that was made before an edit counts after it, so it is refunded too.
pub(super) async fn what_was_charged_before_an_edit_is_refunded(subject: &impl Subject) {
    let store = &*subject.clients()[0];
    for (n, is_checked) in [false, true].into_iter().enumerate() {
        let version = |per| limit(&format!("refunded-{n}"), vec![rate(100, per, Algorithm::SLIDING_WINDOW)]);
        let (former, edited) = (version(MAX_PERIOD_MS), version(MAX_PERIOD_MS - 1));
        assert_eq!(admitted(store, &[counter(&former, 20)], 1).await, 1);
        let charged = decide(store, &[counter(&former, 40)]).await.at;
        if is_checked {
            assert_eq!(admitted(store, &[counter(&edited, 5)], 1).await, 1);
        }
        let (limit, used) = (edited.clone(), if is_checked { 65 } else { 60 });
        assert_eq!(remaining(store, &edited).await, [100 - used]);
        let refund = Settlement { limit, key: KEY, charged, delta: -30, overflowed: false, least: 0 };
        store.settle(refund).await.unwrap();
        assert_eq!(remaining(store, &edited).await, [100 - used + 30]);
        // Those who count by the former version saw no check by the edited one.
        let left = if is_checked { 40 } else { 70 };
        assert_eq!(remaining(store, &former).await, [left]);
    }
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

pub(super) async fn a_charge_of_a_shared_counter_is_corrected_there(subject: &impl Subject) {
    let store = &*subject.clients()[0];
    let spec = LimitSpec::new("ns/policy/shared", vec![rate(100, MAX_PERIOD_MS, Algorithm::SLIDING_WINDOW)]);
    let limit = Arc::new(spec.with_max_keys(1));
    let mut number = 0;
    let (shared, charged) = loop {
        number += 1;
        let shared = Counter { cost: 10, ..client(&limit, number) };
        let response = decide(store, std::slice::from_ref(&shared)).await;
        if response.key_usages.is_overflowed(0) {
            break (shared, response.at);
        }
    };
    let left = async || decide(store, &[Counter { cost: 0, ..shared.clone() }]).await.decisions[0].remaining;
    let settle = async |delta, overflowed| {
        let (limit, key) = (limit.clone(), shared.key);
        store.settle(Settlement { limit, key, charged, delta, overflowed, least: 0 }).await.unwrap();
        left().await
    };
    assert_eq!(left().await, 90);
    assert_eq!(settle(-4, false).await, 90, "the key has no counter of its own");
    assert_eq!(settle(-4, true).await, 94);
    assert_eq!(settle(7, true).await, 87);
    assert_eq!(settle(i64::MIN, true).await, 100);
}
