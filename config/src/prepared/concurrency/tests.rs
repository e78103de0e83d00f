use serde::Deserialize;

use super::Concurrency;
use crate::PreparedPolicy;
use crate::policy::{AdaptiveKind, CompiledAdaptive, CompiledRate, RateAlgorithm, SLOT_LEASE_MILLIS};

const GRADIENT2: AdaptiveKind = AdaptiveKind::Gradient2 { tolerance_percent: 3, queue_percent: 5 };

fn shared(requests: u64) -> CompiledRate {
    CompiledRate { requests, period_millis: SLOT_LEASE_MILLIS, algorithm: RateAlgorithm::Concurrency }
}

fn adaptive(minimum: u32, initial: u32, maximum: u32, kind: AdaptiveKind) -> CompiledRate {
    let adaptive = CompiledAdaptive { minimum, initial, maximum, kind };
    let algorithm = RateAlgorithm::Adaptive(Box::new(adaptive));
    CompiledRate { requests: u64::from(maximum), period_millis: 1, algorithm }
}

fn policy(rates: &[CompiledRate]) -> String {
    format!(
        r#"{{"namespace":"n","name":"p","mode":"Enforce","onStoreFailure":"Allow",
        "limits":[{{"name":"l","mode":"Enforce","onMissing":"Shared","rates":{}}}]}}"#,
        serde_json::to_string(rates).unwrap()
    )
}

#[test]
fn an_older_sidecar_does_not_know_concurrency_limits() {
    let json = |rate: &CompiledRate| serde_json::to_string(&rate.algorithm).unwrap();
    assert_eq!(json(&shared(5)), r#""concurrency""#);
    assert_eq!(
        json(&adaptive(1, 2, 3, GRADIENT2)),
        r#"{"adaptive":{"minimum":1,"initial":2,"maximum":3,"kind":{"gradient2":{"tolerancePercent":3,"queuePercent":5}}}}"#
    );
    // The algorithms of a release without concurrency limits.
    #[derive(Debug, Deserialize)]
    #[serde(rename_all = "camelCase")]
    enum Before {
        SlidingWindowCounter,
        FixedWindow,
        TokenBucket {},
    }
    for rate in [shared(5), adaptive(1, 2, 3, GRADIENT2)] {
        assert!(serde_json::from_str::<Before>(&json(&rate)).is_err());
    }
    let known = [r#""slidingWindowCounter""#, r#""fixedWindow""#, r#"{"tokenBucket":{}}"#];
    assert!(known.iter().all(|json| serde_json::from_str::<Before>(json).is_ok()));
}

#[test]
fn a_prepared_concurrency_limit_has_no_rates() {
    let policy = PreparedPolicy::from_json(&policy(&[shared(5)])).unwrap();
    let limit = &policy.limits[0];
    let Some(Concurrency::Shared { max, slot_lease }) = &limit.concurrency else {
        panic!("{limit:?}");
    };
    assert_eq!((max.get(), slot_lease.millis(), limit.rates.len()), (5, SLOT_LEASE_MILLIS, 0));
}

#[test]
fn a_prepared_adaptive_limit_begins_with_its_initial_value() {
    for kind in [
        AdaptiveKind::Aimd { tolerance_percent: 10, timeout_millis: 5000 },
        AdaptiveKind::Vegas { queue_percent: 10 },
        GRADIENT2,
    ] {
        let policy = PreparedPolicy::from_json(&policy(&[adaptive(4, 20, 400, kind)])).unwrap();
        let Some(Concurrency::Adaptive(adaptive)) = &policy.limits[0].concurrency else {
            panic!("{policy:?}");
        };
        assert_eq!(adaptive.limit(), 20);
    }
}

#[test]
fn a_nack_names_the_limit_and_the_reason() {
    let rate = CompiledRate { requests: 1, period_millis: 1000, algorithm: RateAlgorithm::FixedWindow };
    let narrow = AdaptiveKind::Vegas { queue_percent: 0 };
    for (rates, expected) in [
        (vec![shared(1_000_001)], "out of range"),
        (vec![shared(5), rate], "cannot be combined with rates"),
        (vec![adaptive(5, 4, 9, GRADIENT2)], "initial is 4"),
        (vec![adaptive(5, 9, 4, GRADIENT2)], "maximum is 4"),
        (vec![adaptive(1, 2, 3, narrow)], "beta is 0"),
    ] {
        let nack = PreparedPolicy::from_json(&policy(&rates)).unwrap_err();
        assert!(nack.0.starts_with("limit l: ") && nack.0.contains(expected), "{nack}");
    }
}
