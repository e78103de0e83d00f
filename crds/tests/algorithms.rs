//! Algorithms and enforcement: compiled policies, their summaries, and the errors of invalid ones.

use sluice_config::PreparedPolicy;
use sluice_crds::Installation;
use sluice_crds::manifest::{LoadedPolicy, load};
use sluice_crds::summary;

/// A policy with one limit, with these rates and further fields.
fn manifest(rates: &str, more: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p, namespace: n}}\nspec:\n  limits:\n  - name: l\n    rates: [{rates}]\n    {more}\n"
    )
}

fn one(rates: &str, more: &str) -> LoadedPolicy {
    let text = manifest(rates, more);
    load(&text, &Installation::default())
        .unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
        .policies
        .remove(0)
}

fn errors(rates: &str, more: &str) -> Vec<String> {
    load(&manifest(rates, more), &Installation::default())
        .expect_err("the policy must be rejected")
        .iter()
        .map(ToString::to_string)
        .collect()
}

const ONE: &str = "{requests: 6, per: 1m}";
const TWO: &str = "{requests: 6, per: 1m}, {requests: 60, per: 1h}";

/// Every algorithm and every enforcement, with the summary of its policy.
const EVERY: [(&str, &str, &str); 24] = [
    (ONE, "", "l 6/1m"),
    (ONE, "algorithm: {slidingWindowCounter: {}}", "l 6/1m"),
    (ONE, "enforcement: {hard: {}}", "l 6/1m"),
    (
        "{requests: 6, per: 1m}, {requests: 500, per: 1h, subWindows: 60}",
        "",
        "l 6/1m 500/1h (60 sub-windows)",
    ),
    (
        "{requests: 6, per: 1m, subWindows: 10}",
        "algorithm: {slidingWindowCounter: {bound: Guaranteed}}",
        "l 6/1m (10 sub-windows) [Guaranteed]",
    ),
    (ONE, "algorithm: {fixedWindow: {}}", "l 6/1m [fixedWindow]"),
    (TWO, "algorithm: {fixedWindow: {alignment: Clock}}", "l 6/1m 60/1h [fixedWindow]"),
    (ONE, "algorithm: {fixedWindow: {alignment: FirstRequest}}", "l 6/1m [fixedWindow FirstRequest]"),
    (ONE, "algorithm: {fixedWindow: {alignment: Spread}}", "l 6/1m [fixedWindow Spread]"),
    (ONE, "algorithm: {slidingWindowLog: {}}", "l 6/1m [slidingWindowLog]"),
    (
        ONE,
        "algorithm: {slidingWindowLog: {minInterval: 2s, countDenied: true}}",
        "l 6/1m [slidingWindowLog, minInterval 2s, countDenied]",
    ),
    (
        ONE,
        "algorithm: {slidingWindowCounter: {bound: Guaranteed, countDenied: true}}",
        "l 6/1m [Guaranteed, countDenied]",
    ),
    (
        ONE,
        "algorithm: {fixedWindow: {alignment: Spread, countDenied: true}}",
        "l 6/1m [fixedWindow Spread, countDenied]",
    ),
    (TWO, "algorithm: {tokenBucket: {}}", "l 6/1m 60/1h [tokenBucket]"),
    (ONE, "algorithm: {tokenBucket: {burst: 20}}", "l 6/1m [tokenBucket burst 20]"),
    ("{requests: 0, per: 1m}", "algorithm: {tokenBucket: {}}", "l 0/1m [tokenBucket]"),
    (ONE, "algorithm: {tokenBucket: {warmUp: {period: 10s}}}", "l 6/1m [tokenBucket warmUp 10s from 1/3]"),
    (ONE, "algorithm: {gcra: {}}", "l 6/1m [gcra]"),
    (ONE, "algorithm: {gcra: {burst: 3}}", "l 6/1m [gcra burst 3]"),
    (ONE, "algorithm: {leakyBucket: {maxWait: 30s}}", "l 6/1m [leakyBucket maxWait 30s]"),
    (TWO, "enforcement: {soft: {overPercent: 20, for: 30s}}", "l 6/1m 60/1h [soft +20% for 30s]"),
    (
        ONE,
        "algorithm: {fixedWindow: {}}\n    enforcement: {soft: {overPercent: 20, for: 30s}}",
        "l 6/1m [fixedWindow, soft +20% for 30s]",
    ),
    (
        ONE,
        "enforcement: {elastic: {requests: 20, utilizationBelowPercent: 70, capacity: {inFlight: 40}}}",
        "l 6/1m [elastic 20 below 70% of 40 in flight]",
    ),
    (
        ONE,
        "algorithm: {tokenBucket: {}}\n    enforcement: {elastic: {requests: 20, utilizationBelowPercent: 70, capacity: {inFlight: 40}}}",
        "l 6/1m [tokenBucket, elastic 20 below 70% of 40 in flight]",
    ),
];

#[test]
fn every_algorithm_compiles_is_applied_by_a_sidecar_and_has_a_summary() {
    for (rates, more, expected) in EVERY {
        let loaded = one(rates, more);
        assert_eq!(summary::full(&loaded.compiled), expected);
        let json = loaded.compiled.to_json();
        let prepared = PreparedPolicy::from_json(&json).unwrap_or_else(|nack| panic!("{nack}\n{json}"));
        assert_eq!(prepared.limits[0].boosted_below().is_some(), more.contains("elastic"), "{more}");
    }
}

#[test]
fn a_default_that_is_written_out_changes_nothing() {
    assert_eq!(
        one(ONE, "").compiled.to_json(),
        r#"{"namespace":"n","name":"p","mode":"Enforce","onStoreFailure":"Share","consistency":"Strict","ambiguousPaths":"Match","limits":[{"name":"l","mode":"Enforce","onMissing":"Shared","kind":{"rates":{"base":[{"requests":6,"periodMillis":60000,"algorithm":{"slidingWindowCounter":{"subWindows":1,"bound":"Estimate"}}}]}}}]}"#
    );
    let plain = one(ONE, "").compiled;
    for more in [
        "algorithm: {slidingWindowCounter: {bound: Estimate}}",
        "algorithm: {slidingWindowCounter: {}}",
        "enforcement: {hard: {}}",
    ] {
        assert_eq!(one(ONE, more).compiled, plain);
    }
    assert_eq!(one("{requests: 6, per: 1m, subWindows: 1}", "").compiled, plain);
}

#[test]
fn an_invalid_algorithm_or_enforcement_is_reported_with_its_path() {
    let limit = "spec.limits[0]";
    for (rates, more, path, expected) in [
        (
            ONE,
            "algorithm: {}",
            ".algorithm",
            "exactly one of slidingWindowCounter, fixedWindow, slidingWindowLog, tokenBucket, gcra, leakyBucket must be set, but none is set",
        ),
        (ONE, "algorithm: {gcra: {}, tokenBucket: {}}", ".algorithm", "tokenBucket and gcra are set"),
        (ONE, "algorithm: {gcra: {bust: 1}}", ".algorithm.gcra.bust", "unknown field: did you mean burst?"),
        ("{requests: 6, per: 1m, subWindows: 0}", "", ".rates[0].subWindows", "0 is out of range: 1 to 60"),
        ("{requests: 6, per: 1m, subWindows: 61}", "", ".rates[0].subWindows", "out of range"),
        ("{requests: 6, per: 1m, subWindows: '6'}", "", ".rates[0].subWindows", "must be an integer"),
        (
            "{requests: 6, per: 1s, subWindows: 7}",
            "",
            ".rates[0].subWindows",
            "choose a number that divides it",
        ),
        ("{requests: 6, per: 59ms, subWindows: 60}", "", ".rates[0].subWindows", "whole milliseconds"),
        (
            "{requests: 6, per: 1m, subWindows: 1}",
            "algorithm: {gcra: {}}",
            ".rates[0].subWindows",
            "is only allowed with slidingWindowCounter",
        ),
        (
            ONE,
            "algorithm: {slidingWindowCounter: {bound: Exact}}",
            ".algorithm.slidingWindowCounter.bound",
            "one of Estimate, Guaranteed",
        ),
        (
            ONE,
            "algorithm: {fixedWindow: {alignment: Noon}}",
            ".algorithm.fixedWindow.alignment",
            "one of Clock, FirstRequest, Spread",
        ),
        (
            "{requests: 10001, per: 1m}",
            "algorithm: {slidingWindowLog: {}}",
            ".rates[0].requests",
            "at most 10000",
        ),
        (
            ONE,
            "algorithm: {slidingWindowLog: {minInterval: 1d}}",
            ".algorithm.slidingWindowLog.minInterval",
            "is not a duration",
        ),
        (
            ONE,
            "algorithm: {slidingWindowLog: {minInterval: 0s}}",
            ".algorithm.slidingWindowLog.minInterval",
            "out of range",
        ),
        (
            ONE,
            "algorithm: {slidingWindowLog: {minInterval: 61s}}",
            ".algorithm.slidingWindowLog.minInterval",
            "1m1s is longer than the period of rates[0], 1m",
        ),
        (
            ONE,
            "algorithm: {slidingWindowLog: {countDenied: yes}}",
            ".algorithm.slidingWindowLog.countDenied",
            "must be a boolean",
        ),
        (ONE, "algorithm: {tokenBucket: {burst: 0}}", ".algorithm.tokenBucket.burst", "out of range"),
        (
            "{requests: 1, per: 8784h}",
            "algorithm: {tokenBucket: {burst: 2}}",
            ".algorithm.tokenBucket.burst",
            "longer than 8784 hours",
        ),
        (
            "{requests: 1, per: 8784h}",
            "algorithm: {gcra: {burst: 2}}",
            ".algorithm.gcra.burst",
            "longer than 8784 hours",
        ),
        (
            ONE,
            "algorithm: {tokenBucket: {burst: 5, warmUp: {period: 1s}}}",
            ".algorithm.tokenBucket.burst",
            "cannot be combined with warmUp",
        ),
        (
            ONE,
            "algorithm: {tokenBucket: {warmUp: {}}}",
            ".algorithm.tokenBucket.warmUp.period",
            "is required",
        ),
        (
            ONE,
            "algorithm: {tokenBucket: {warmUp: {period: 61m}}}",
            ".algorithm.tokenBucket.warmUp.period",
            "1ms to 1h are allowed",
        ),
        (
            ONE,
            "algorithm: {tokenBucket: {warmUp: {period: 1s, coldFactor: 1}}}",
            ".algorithm.tokenBucket.warmUp.coldFactor",
            "2 to 100",
        ),
        (
            "{requests: 6, per: 8784h}",
            "algorithm: {tokenBucket: {warmUp: {period: 1s}}}",
            ".rates[0].per",
            "with warmUp",
        ),
        (ONE, "algorithm: {leakyBucket: {}}", ".algorithm.leakyBucket.maxWait", "is required"),
        (
            ONE,
            "algorithm: {leakyBucket: {maxWait: 0s}}",
            ".algorithm.leakyBucket.maxWait",
            "1ms to 1h are allowed",
        ),
        (
            ONE,
            "enforcement: {}",
            ".enforcement",
            "exactly one of hard, soft, elastic must be set, but none is set",
        ),
        (
            ONE,
            "enforcement: {hard: {}, soft: {overPercent: 1, for: 1s}}",
            ".enforcement",
            "hard and soft are set",
        ),
        (ONE, "enforcement: {soft: {overPercent: 0, for: 1s}}", ".enforcement.soft.overPercent", "1 to 1000"),
        (
            ONE,
            "enforcement: {soft: {overPercent: 1001, for: 1s}}",
            ".enforcement.soft.overPercent",
            "1 to 1000",
        ),
        (ONE, "enforcement: {soft: {overPercent: 20}}", ".enforcement.soft.for", "is required"),
        (
            ONE,
            "enforcement: {soft: {overPercent: 20, for: soon}}",
            ".enforcement.soft.for",
            "is not a duration",
        ),
        (
            ONE,
            "algorithm: {tokenBucket: {}}\n    enforcement: {soft: {overPercent: 20, for: 1s}}",
            ".enforcement.soft",
            "with tokenBucket or gcra, set a burst instead",
        ),
        (
            ONE,
            "algorithm: {slidingWindowLog: {}}\n    enforcement: {soft: {overPercent: 20, for: 1s}}",
            ".enforcement.soft",
            "is only allowed with slidingWindowCounter and fixedWindow",
        ),
        (
            "{requests: 1, per: 60s}, {requests: 2, per: 1m}",
            "enforcement: {soft: {overPercent: 20, for: 1s}}",
            ".rates[1].per",
            "same period",
        ),
        (
            TWO,
            "enforcement: {elastic: {requests: 100, utilizationBelowPercent: 70, capacity: {inFlight: 4}}}",
            ".enforcement.elastic",
            "is only allowed with exactly one rate, but the limit has 2",
        ),
        (
            ONE,
            "enforcement: {elastic: {requests: 6, utilizationBelowPercent: 70, capacity: {inFlight: 4}}}",
            ".enforcement.elastic.requests",
            "must be higher than the 6 requests of the rate, but is 6",
        ),
        (
            ONE,
            "enforcement: {elastic: {requests: 7, utilizationBelowPercent: 101, capacity: {inFlight: 4}}}",
            ".enforcement.elastic.utilizationBelowPercent",
            "1 to 100",
        ),
        (
            ONE,
            "enforcement: {elastic: {requests: 7, utilizationBelowPercent: 70, capacity: {}}}",
            ".enforcement.elastic.capacity",
            "inFlight must be set",
        ),
        (
            ONE,
            "enforcement: {elastic: {requests: 7, utilizationBelowPercent: 70}}",
            ".enforcement.elastic.capacity",
            "is required",
        ),
        (
            ONE,
            "algorithm: {slidingWindowLog: {}}\n    enforcement: {elastic: {requests: 10001, utilizationBelowPercent: 70, capacity: {inFlight: 4}}}",
            ".enforcement.elastic.requests",
            "at most 10000",
        ),
    ] {
        let errors = errors(rates, more);
        assert_eq!(errors.len(), 1, "{errors:?}");
        assert!(
            errors[0].contains(&format!(": {limit}{path}: ")) && errors[0].contains(expected),
            "{path}: {expected}\n{errors:?}"
        );
    }
}
