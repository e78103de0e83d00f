//! The treatment of denied requests: compiled policies, their summaries, warnings, and the errors of invalid ones.

use sluice_config::PreparedPolicy;
use sluice_crds::Installation;
use sluice_crds::manifest::{LoadedPolicy, Problem, load};
use sluice_crds::summary::full;

/// Returns a policy of one limit with these fields.
fn limit(fields: &str) -> String {
    policy(&format!("limits:\n  - {{name: l, rates: [{{requests: 6, per: 1m}}], {fields}}}"))
}

/// Returns a policy with these further fields.
fn policy(fields: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p, namespace: n}}\nspec:\n  \
         clientAddress: {{trustedProxies: []}}\n  {fields}\n"
    )
}

fn loaded(text: &str) -> LoadedPolicy {
    load(text, &Installation::default())
        .unwrap_or_else(|problems| panic!("{text}: {problems:?}"))
        .policies
        .remove(0)
}

fn first_problem(text: &str) -> Problem {
    load(text, &Installation::default()).expect_err(text).remove(0)
}

const KEY: &str = "key: {parts: [{clientIP: {}}]}";

#[test]
fn every_treatment_compiles_is_applied_by_a_sidecar_and_has_a_summary() {
    for (on_limit, summary, json) in [
        (
            "queue: {maxWait: 2s}",
            "queue 100 for up to 2s",
            r#""onLimit":{"queue":{"maxWait":"2s","maxLength":100,"order":"Fifo"}}"#,
        ),
        (
            "queue: {maxWait: 5m, maxLength: 7, order: Lifo}, reject: {statusCode: 503}",
            "queue 7 for up to 5m Lifo",
            r#""queue":{"maxWait":"5m","maxLength":7,"order":"Lifo"}"#,
        ),
        ("mark: {header: X-Rate-Limited}", "mark X-Rate-Limited", r#""mark":{"header":"X-Rate-Limited"}"#),
        (
            "block: {after: 10, within: 1m, for: 15m}, reject: {}",
            "block for 15m after 10 denials within 1m",
            r#""block":{"after":10,"within":"1m","for":"15m"}"#,
        ),
    ] {
        let policy = loaded(&limit(&format!("{KEY}, onLimit: {{{on_limit}}}")));
        assert_eq!(full(&policy.compiled), format!("l 6/1m by client address [{summary}]"));
        assert!(policy.warnings.is_empty(), "{:?}", policy.warnings);
        let compiled = policy.compiled.to_json();
        assert!(compiled.contains(json), "{json} in {compiled}");
        PreparedPolicy::from_json(&compiled).unwrap_or_else(|nack| panic!("{on_limit}: {nack}"));
    }
}

#[test]
fn a_limit_on_concurrent_requests_waits_and_marks_but_neither_blocks_nor_waits_for_an_adaptive_limit() {
    let concurrency = |fields: &str| policy(&format!("concurrency:\n  - {{name: l, {fields}}}"));
    let queued = loaded(&concurrency("max: 3, onLimit: {queue: {maxWait: 2s}}"));
    assert_eq!(full(&queued.compiled), "l 3 concurrent [queue 100 for up to 2s]");
    loaded(&concurrency("max: 3, onLimit: {mark: {header: x-busy}}"));
    for (fields, path, message) in [
        ("max: 3, onLimit: {block: {after: 1, within: 1s, for: 1s}}", "block", "is only allowed with rates"),
        (
            "adaptive: {gradient2: {minimum: 1, maximum: 9}}, onLimit: {queue: {maxWait: 2s}}",
            "queue",
            "is not allowed with adaptive",
        ),
        (
            "adaptive: {gradient2: {minimum: 1, maximum: 9}}, onLimit: {mark: {header: x-busy}}",
            "mark",
            "is not allowed with adaptive",
        ),
    ] {
        let problem = first_problem(&concurrency(fields));
        assert_eq!(problem.path, format!("spec.concurrency[0].onLimit.{path}"), "{problem:?}");
        assert!(problem.message.contains(message), "{problem:?}");
    }
}

#[test]
fn what_makes_no_sense_is_refused_with_its_path() {
    for (fields, path, message) in [
        ("onLimit: {}", "", "at least one of reject, queue, mark, block must be set"),
        ("onLimit: {mark: {header: x-a}, reject: {}}", ".reject", "is not allowed with mark"),
        ("onLimit: {mark: {header: x-a}, queue: {maxWait: 1s}}", ".queue", "is not allowed with mark"),
        ("onLimit: {mark: {header: Cookie}}", ".mark.header", "may have another meaning"),
        (
            "matches: [{headers: [{name: X-Plan, exact: a}]}], onLimit: {mark: {header: x-plan}}",
            ".mark.header",
            "the limit reads",
        ),
        ("onLimit: {mark: {header: 'a b'}}", ".mark.header", "without spaces"),
        ("onLimit: {mark: {}}", ".mark.header", "is required"),
        (
            "onLimit: {queue: {maxWait: 1s}, block: {after: 1, within: 1s, for: 1s}}",
            ".block",
            "is not allowed with queue",
        ),
        ("onLimit: {queue: {}}", ".queue.maxWait", "is required"),
        ("onLimit: {queue: {maxWait: 2}}", ".queue.maxWait", "must be a duration with a unit, such as 2s"),
        ("onLimit: {queue: {maxWait: 6m}}", ".queue.maxWait", "1ms to 5m are allowed"),
        ("onLimit: {queue: {maxWait: 1s, maxLength: 0}}", ".queue.maxLength", "1 to 10000"),
        ("onLimit: {queue: {maxWait: 1s, order: Random}}", ".queue.order", "Fifo, Lifo"),
        ("onLimit: {block: {after: 0, within: 1s, for: 1s}}", ".block.after", "1 to 1000"),
        ("onLimit: {block: {after: 1001, within: 1s, for: 1s}}", ".block.after", "1 to 1000"),
        ("onLimit: {block: {after: 3, within: 1s}}", ".block.for", "is required"),
        ("onLimit: {block: {after: 3, within: 0s, for: 1s}}", ".block.within", ""),
        (
            "algorithm: {fixedWindow: {countDenied: true}}, onLimit: {block: {after: 3, within: 1s, for: 1s}}",
            ".block",
            "is not allowed with countDenied",
        ),
        (
            "algorithm: {fixedWindow: {countDenied: true}}, onLimit: {queue: {maxWait: 1s}}",
            ".queue",
            "is not allowed with countDenied",
        ),
    ] {
        let problem = first_problem(&limit(&format!("{KEY}, {fields}")));
        assert_eq!(problem.path, format!("spec.limits[0].onLimit{path}"), "{fields}: {problem:?}");
        assert!(problem.message.contains(message), "{fields}: {problem:?}");
    }
}

#[test]
fn a_block_of_all_clients_together_is_warned_of() {
    let warnings = loaded(&limit("onLimit: {block: {after: 3, within: 1m, for: 15m}}")).warnings;
    assert_eq!(warnings[0].path, "spec.limits[0].onLimit.block");
    assert!(warnings[0].message.contains("blocks all clients together"), "{warnings:?}");
    let shared = "key: {parts: [{jwtClaim: {jwt: main, claim: sub}}]}, onLimit: {block: {after: 3, within: 1m, for: 15m}}";
    let jwt = "jwt: [{name: main, trusted: true}]\n  limits:";
    let warnings = loaded(&limit(shared).replace("limits:", jwt)).warnings;
    let of_key = warnings.iter().find(|warning| warning.path == "spec.limits[0].key.onMissing").unwrap();
    assert!(of_key.message.contains("are blocked together"), "{warnings:?}");
}

#[test]
fn parts_of_a_key_are_public_only_if_the_policy_says_so() {
    let parts = "key: {parts: [{header: {name: x-api-key}}, {clientIP: {}, public: true}, {host: {}, public: false}]}";
    let compiled = loaded(&limit(parts)).compiled.to_json();
    assert!(
        compiled.contains(r#"{"clientIP":{"ipv4Prefix":32,"ipv6Prefix":64},"public":true}"#),
        "{compiled}"
    );
    let none = loaded(&limit(KEY)).compiled.to_json();
    assert!(!none.contains("public"), "{none}");
    let problem = first_problem(&limit("key: {parts: [{public: true}]}"));
    assert_eq!(problem.path, "spec.limits[0].key.parts[0]", "{problem:?}");
    let problem = first_problem(&limit("key: {parts: [{host: {}, public: yes please}]}"));
    assert_eq!(problem.path, "spec.limits[0].key.parts[0].public", "{problem:?}");
}
