//! Limits on concurrent requests: compiled policies, their summaries, and the errors of invalid ones.

use sluice_config::PreparedPolicy;
use sluice_config::policy::Mode;
use sluice_crds::Installation;
use sluice_crds::manifest::{LoadedPolicy, Problem, load};
use sluice_crds::summary::full;

fn spec(spec: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p, namespace: n}}\nspec:\n{spec}\n"
    )
}

fn loaded(text: &str) -> LoadedPolicy {
    load(&spec(text), &Installation::default())
        .unwrap_or_else(|problems| panic!("{problems:?}"))
        .policies
        .remove(0)
}

fn first_problem(text: &str) -> Problem {
    load(&spec(text), &Installation::default()).expect_err("the policy must be rejected").remove(0)
}

#[test]
fn every_concurrency_limit_compiles_is_applied_by_a_sidecar_and_has_a_summary() {
    let policy = loaded(
        "  limits: [{name: rate, rates: [{requests: 6, per: 1m}]}]
  concurrency:
  - {name: each, max: 5, mode: Shadow, matches: [{path: {prefix: /v1}}], key: {parts: [{header: {name: X-Key}}], onMissing: Skip}}
  - {name: g, adaptive: {gradient2: {minimum: 4, maximum: 400}}}
  - {name: v, adaptive: {vegas: {minimum: 30, maximum: 40}}}
  - {name: a, adaptive: {aimd: {minimum: 1, maximum: 9, timeout: 1500ms}}}",
    )
    .compiled;
    assert_eq!(
        full(&policy),
        "rate 6/1m, each 5 concurrent by header X-Key on /v1/* [Shadow], g 4 to 400 concurrent per pod [adaptive gradient2], \
         v 30 to 40 concurrent per pod [adaptive vegas], a 1 to 9 concurrent per pod [adaptive aimd]"
    );
    let json = policy.to_json();
    for part in [
        r#"{"name":"each","mode":"Shadow","matches":[{"path":{"prefix":"/v1"}}],"key":[{"header":{"name":"X-Key"}}],"onMissing":"Skip","kind":{"slots":{"max":5,"leaseMillis":30000,"abandonedForMillis":30000}}}"#,
        r#"{"gradient2":{"minimum":4,"maximum":400},"abandonedForMillis":30000}"#,
        r#"{"vegas":{"minimum":30,"maximum":40},"abandonedForMillis":30000}"#,
        r#"{"aimd":{"minimum":1,"maximum":9,"timeout":"1s500ms"},"abandonedForMillis":30000}"#,
    ] {
        assert!(json.contains(part), "{part} in {json}");
    }
    let prepared = PreparedPolicy::from_json(&json).expect("sidecars apply it");
    assert_eq!(prepared.limits.iter().filter(|limit| limit.rate_sets().is_empty()).count(), 4);
}

#[test]
fn a_policy_may_have_only_concurrency_limits_and_its_shadow_mode_takes_precedence() {
    let policy = loaded("  mode: Shadow\n  concurrency: [{name: c, max: 1, mode: Enforce}]").compiled;
    assert_eq!((policy.limits.len(), policy.limits[0].mode), (1, Mode::Shadow));
}

#[test]
fn an_invalid_concurrency_limit_is_reported_with_its_path() {
    let g = "gradient2: {minimum: 4, maximum: 400}";
    for (text, path, expected) in [
        ("{name: a}".to_owned(), "spec.concurrency[0]", "exactly one of max, adaptive must be set, but none"),
        (
            format!("{{name: a, max: 1, adaptive: {{{g}}}}}"),
            "spec.concurrency[0]",
            "max and adaptive are set",
        ),
        ("{name: a, max: 0}".into(), "spec.concurrency[0].max", "1 to 1000000"),
        ("{name: a, max: 1000001}".into(), "spec.concurrency[0].max", "1 to 1000000"),
        (
            format!("{{name: a, key: {{parts: [{{clientIP: {{}}}}]}}, adaptive: {{{g}}}}}"),
            "spec.concurrency[0].key",
            "is not allowed with adaptive",
        ),
        ("{name: a, adaptive: {}}".into(), "spec.concurrency[0].adaptive", "exactly one of aimd, vegas"),
        (
            format!("{{name: a, adaptive: {{{g}, vegas: {{minimum: 1, maximum: 2}}}}}}"),
            "spec.concurrency[0].adaptive",
            "vegas and gradient2 are set",
        ),
        (
            "{name: a, adaptive: {vegas: {minimum: 3, maximum: 2}}}".into(),
            "spec.concurrency[0].adaptive.vegas.maximum",
            "2 is out of range: 3 to",
        ),
        (
            "{name: a, adaptive: {vegas: {minimum: 3, initial: 2, maximum: 9}}}".into(),
            "spec.concurrency[0].adaptive.vegas.initial",
            "2 is out of range: 3 to 9",
        ),
        (
            "{name: a, adaptive: {aimd: {minimum: 1, maximum: 2, timeout: 2h}}}".into(),
            "spec.concurrency[0].adaptive.aimd.timeout",
            "1h",
        ),
        ("{name: a, max: 1, matches: [{}]}".into(), "spec.concurrency[0].matches[0]", "is empty"),
        (
            "{name: a, max: 1, key: {parts: [{}]}}".into(),
            "spec.concurrency[0].key.parts[0]",
            "exactly one of header",
        ),
        ("{name: l, max: 1}".into(), "spec.concurrency[0].name", "is already used by spec.limits[0]"),
        (
            "{name: a, max: 1}, {name: a, max: 2}".into(),
            "spec.concurrency[1].name",
            "is already used by spec.concurrency[0]",
        ),
    ] {
        let limits = "  limits: [{name: l, rates: [{requests: 1, per: 1s}]}]";
        let error = first_problem(&format!("{limits}\n  concurrency: [{text}]")).to_string();
        assert!(error.contains(&format!("{path}: ")) && error.contains(expected), "{text}: {error}");
    }
    let error = first_problem("  mode: Enforce").to_string();
    assert!(error.contains("spec.limits: is required unless spec.concurrency is set"), "{error}");
}

#[test]
fn the_response_to_a_denied_request_is_that_of_limits() {
    let policy = loaded(
        "  concurrency:
  - {name: c, max: 1, onLimit: {reject: {statusCode: 503, body: {envelope: {}}}}}
  - {name: a, adaptive: {aimd: {minimum: 1, maximum: 9}}, onLimit: {reject: {statusCode: 529}}}",
    );
    let json = policy.compiled.to_json();
    for part in [
        r#""reject":{"statusCode":503,"body":{"envelope":{"code":"rate_limit_exceeded"}}"#,
        r#""reject":{"statusCode":529,"body":{"problem":{}}"#,
    ] {
        assert!(json.contains(part), "{part} in {json}");
    }
    let problem = first_problem(
        "  concurrency: [{name: c, max: 1, onLimit: {reject: {headers: [{name: date, value: x}]}}}]",
    );
    assert!(
        problem.to_string().contains("spec.concurrency[0].onLimit.reject.headers: date is set by Sluice"),
        "{problem}"
    );
}

const ADAPTIVE: &str = "concurrency: [{name: a, adaptive: {gradient2: {minimum: 4, maximum: 400}}}]";

/// Returns a policy with an adaptive limit and priorities.
fn with_priorities(priorities: &str) -> String {
    format!("  {ADAPTIVE}\n  priorities: {priorities}")
}

#[test]
fn priorities_become_a_part_of_adaptive_limits_and_of_no_others() {
    let text = with_priorities(
        "[{name: pay, matches: [{path: {prefix: /pay}}], reservePercent: 60}, {name: vip, when: 'request.headers[\"x-vip\"] == \"1\"', reservePercent: 30}]",
    ) + "\n  limits: [{name: rate, rates: [{requests: 6, per: 1m}]}]";
    let policy = loaded(&text).compiled;
    assert_eq!(
        full(&policy),
        "rate 6/1m, a 4 to 400 concurrent per pod [adaptive gradient2, 60% for pay, 30% for vip]"
    );
    let json = policy.to_json();
    let pay = r#""priorities":[{"name":"pay","matches":[{"path":{"prefix":"/pay"}}],"reservePercent":60},{"name":"vip","when":"#;
    assert!(json.contains(pay), "{json}");
    let prepared = PreparedPolicy::from_json(&json).expect("sidecars apply it");
    assert_eq!(prepared.limits[1].exception(2).as_deref(), Some("priority vip, with 30% in reserve"));
    assert_eq!([prepared.limits[1].exception(0), prepared.limits[1].exception(3)], [None, None]);
    assert_eq!(policy.limits[1].expressions(&policy.expressions).count(), 1);
    let error = PreparedPolicy::from_json(&json.replace(":60}", ":61}")).expect_err("too much in reserve");
    assert!(
        error.to_string().contains("at most 8 priorities with 90 percent in reserve together"),
        "{error}"
    );
}

#[test]
fn an_invalid_priority_is_reported_with_its_path() {
    let path = "matches: [{path: {prefix: /pay}}]";
    let two = format!("[{{name: a, {path}, reservePercent: 50}}, {{name: b, {path}, reservePercent: 41}}]");
    for (text, at, expected) in [
        (with_priorities(&two), "spec.priorities", "reserve 91 percent together"),
        (
            with_priorities("[{name: a, reservePercent: 5}]"),
            "spec.priorities[0].matches",
            "is required unless `when` is set",
        ),
        (
            with_priorities(&format!("[{{name: a, {path}}}]")),
            "spec.priorities[0].reservePercent",
            "is required",
        ),
        (
            with_priorities(&format!("[{{name: a, {path}, reservePercent: 91}}]")),
            "spec.priorities[0].reservePercent",
            "1 to 90",
        ),
        (
            with_priorities("[{name: a, when: 'request.path', reservePercent: 5}]"),
            "spec.priorities[0].when",
            "bool",
        ),
        (
            format!(
                "  concurrency: [{{name: c, max: 5}}]\n  priorities: [{{name: a, {path}, reservePercent: 5}}]"
            ),
            "spec.priorities",
            "have no effect, because no limit in spec.concurrency is adaptive",
        ),
    ] {
        let problem = first_problem(&text).to_string();
        assert!(problem.contains(&format!("{at}: ")), "{at}: {problem}");
        assert!(problem.contains(expected), "{at}: {problem}");
    }
}
