//! Settings that apply to a whole policy: how they are sent, and their place in the summary.

use sluice_crds::Installation;
use sluice_crds::manifest::{LoadedPolicy, load};

/// A policy with these settings and these limits.
fn load_one(top: &str, limits: &str) -> LoadedPolicy {
    let text = format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p, namespace: n}}\nspec:\n  {top}\n  {limits}\n"
    );
    load(&text, &Installation::default())
        .unwrap_or_else(|problems| panic!("{problems:?}\n{text}"))
        .policies
        .remove(0)
}

#[test]
fn settings_of_the_store_are_sent() {
    let limits = "limits: [{name: l, rates: [{requests: 6, per: 1m}]}]";
    let plain = load_one("mode: Enforce", limits).compiled;
    let strict = load_one("consistency: Strict", limits).compiled;
    assert_eq!(strict.to_json(), plain.to_json());
    for consistency in ["Leased", "Local"] {
        let policy =
            load_one(&format!("consistency: {consistency}\n  onStoreFailure: Share"), limits).compiled;
        let json = policy.to_json();
        assert!(
            json.contains(&format!(r#""onStoreFailure":"Share","consistency":"{consistency}""#)),
            "{json}"
        );
        let prepared = sluice_config::PreparedPolicy::from_json(&json).expect("a sidecar applies it");
        assert_eq!(
            format!("{:?} {:?}", prepared.consistency, prepared.on_store_failure),
            format!("{consistency} Share")
        );
    }
}

#[test]
fn a_summary_contains_only_settings_that_differ_from_the_defaults() {
    let limits = "limits: [{name: l, rates: [{requests: 6, per: 1m}]}]";
    let shadow = "limits: [{name: l, rates: [{requests: 6, per: 1m}], mode: Shadow, algorithm: {gcra: {}}}]";
    let all = "mode: Shadow\n  consistency: Leased\n  onStoreFailure: Allow";
    for (top, limits, expected) in [
        ("mode: Enforce\n  consistency: Strict\n  onStoreFailure: Share", limits, "l 6/1m"),
        ("mode: Shadow", limits, "l 6/1m; Shadow"),
        ("mode: Shadow", shadow, "l 6/1m [gcra]; Shadow"),
        ("mode: Enforce", shadow, "l 6/1m [gcra, Shadow]"),
        ("consistency: Local", limits, "l 6/1m; Local"),
        ("onStoreFailure: Deny", limits, "l 6/1m; onStoreFailure Deny"),
        (all, limits, "l 6/1m; Shadow, Leased, onStoreFailure Allow"),
    ] {
        assert_eq!(sluice_crds::summary::full(&load_one(top, limits).compiled), expected, "{top}");
    }
}
