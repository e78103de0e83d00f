//! Policies that the service enforces: limits for descriptors of gateways' questions, and the errors of those that cannot be.

use sluice_config::policy::LimitKind;
use sluice_crds::Installation;
use sluice_crds::ViolationKind;
use sluice_crds::policy::EnforcedBy;

/// Returns a policy with these fields of its spec, and one limit with these fields.
fn policy(spec: &str, limit: &str) -> serde_json::Value {
    let yaml = format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p, namespace: shop}}\nspec:\n  {spec}\n  \
         limits:\n  - {{name: l, rates: [{{requests: 6, per: 1m}}], {limit}}}\n"
    );
    serde_saphyr::from_str(&yaml).unwrap_or_else(|error| panic!("{yaml}: {error}"))
}

const BOTH: &str = "enforcedBy: [Sidecar, Service]";
const SERVICE: &str = "enforcedBy: [Service]";
const RLS: &str = "rls: {domain: shop, entries: [{key: route, value: pay}, {key: user}]}";

fn first_violation(spec: &str, limit: &str) -> String {
    let violations = sluice_crds::compile(&policy(spec, limit), &Installation::default());
    violations.map(|compiled| panic!("{spec} {limit}: {compiled:?}")).unwrap_err()[0].to_string()
}

#[test]
fn a_limit_for_requests_and_descriptors_has_the_key_of_both() {
    let limit = format!(
        "matches: [{{path: {{prefix: /pay}}}}, {{{RLS}}}], \
         key: {{parts: [{{header: {{name: X-User}}, descriptorKey: user}}]}}, allowOverride: {{maximum: 50}}"
    );
    let compiled = sluice_crds::compile(&policy(BOTH, &limit), &Installation::default()).unwrap();
    assert_eq!(compiled.enforced_by, EnforcedBy { sidecar: true, service: true });
    let json = compiled.policy.to_json();
    assert!(
        json.contains(
            r#"{"rls":{"domain":"shop","entries":[{"key":"route","value":"pay"},{"key":"user"}]}}"#
        ),
        "{json}"
    );
    assert!(
        json.contains(r#""key":[{"header":{"name":"X-User"},"descriptorKey":"user"}],"maxOverride":50"#),
        "{json}"
    );
    sluice_config::PreparedPolicy::from_json(&json).unwrap();
    // A policy of before is compiled as before: sidecars alone.
    let compiled =
        sluice_crds::compile(&policy("mode: Enforce", "matches: []"), &Installation::default()).unwrap();
    assert_eq!(compiled.enforced_by, EnforcedBy::SIDECAR);
    assert!(matches!(compiled.policy.limits[0].kind, LimitKind::Rates(_)));
}

#[test]
fn a_domain_belongs_to_its_namespace_or_is_granted() {
    let limit = |domain: &str| format!("matches: [{{rls: {{domain: {domain}, entries: [{{key: user}}]}}}}]");
    let compile = |domain: &str, installation: &Installation| {
        sluice_crds::compile(&policy(SERVICE, &limit(domain)), installation).map(|_| ())
    };
    let mut installation = Installation::default();
    for domain in ["shop", "shop/checkout"] {
        assert_eq!(compile(domain, &installation), Ok(()), "{domain}");
    }
    for domain in ["shopping", "other/shop", "legacy.example"] {
        let violations = compile(domain, &installation).unwrap_err();
        assert_eq!(violations[0].kind, ViolationKind::DomainNotGranted, "{violations:?}");
        assert_eq!(violations[0].path, "spec.limits[0].matches[0].rls.domain");
    }
    installation.domains.insert("legacy.example".to_owned(), vec!["other".to_owned()]);
    assert!(compile("legacy.example", &installation).is_err(), "granted to another namespace");
    installation.domains.insert("legacy.example".to_owned(), vec!["other".to_owned(), "shop".to_owned()]);
    assert_eq!(compile("legacy.example", &installation), Ok(()));
}

#[test]
fn what_a_gateways_question_does_not_have_is_refused_by_name() {
    let with = |fields: &str| format!("matches: [{{{RLS}}}], {fields}");
    for (field, fields) in [
        ("except", "except: [{methods: [GET]}]"),
        ("when", "when: 'request.path == \"/a\"'"),
        ("tiers", "tiers: [{name: t, unlimited: {}, matches: [{methods: [GET]}]}]"),
        ("cost.request", "cost: {request: {number: 2}}"),
        ("countWhen", "countWhen: {statusCodes: ['401']}"),
        ("algorithm.leakyBucket", "algorithm: {leakyBucket: {maxWait: 1s}}"),
        ("onLimit.queue", "onLimit: {queue: {maxWait: 1s}}"),
        ("onLimit.mark", "onLimit: {mark: {header: x-mark}}"),
    ] {
        let violation = first_violation(SERVICE, &with(fields));
        assert!(violation.starts_with(&format!("spec.limits[0].{field}")), "{fields}: {violation}");
        assert!(violation.contains("remove"), "{fields}: {violation}");
    }
}

#[test]
fn a_limit_that_nothing_enforces_or_whose_key_no_question_has_is_refused_with_the_mend() {
    for (spec, limit, path, text) in [
        (
            "mode: Enforce",
            format!("matches: [{{{RLS}}}]"),
            "matches[0].rls",
            "add Service to spec.enforcedBy",
        ),
        (
            SERVICE,
            "algorithm: {leakyBucket: {maxWait: 1s}}".to_owned(),
            "algorithm.leakyBucket",
            "only sidecars enforce",
        ),
        (SERVICE, "onLimit: {queue: {maxWait: 1s}}".to_owned(), "onLimit.queue", "only sidecars enforce"),
        (
            BOTH,
            "cost: {response: {reserve: 5, reported: {}}}".to_owned(),
            "cost.response.reported",
            "remove Sidecar from spec.enforcedBy",
        ),
        (
            SERVICE,
            format!("matches: [{{{RLS}}}], key: {{parts: [{{header: {{name: x-user}}}}]}}"),
            "key.parts[0]",
            "name the entry that has its value by `descriptorKey`",
        ),
        (
            SERVICE,
            format!("matches: [{{{RLS}}}], key: {{parts: [{{descriptor: {{key: tenant}}}}]}}"),
            "key.parts[0]",
            "matches[0].rls.entries does not have",
        ),
        (
            BOTH,
            format!(
                "matches: [{{{RLS}}}, {{methods: [GET]}}], key: {{parts: [{{descriptor: {{key: user}}}}]}}"
            ),
            "key.parts[0].descriptor",
            "descriptorKey: user",
        ),
        (
            "mode: Enforce",
            "key: {parts: [{descriptor: {key: user}}]}".to_owned(),
            "key.parts[0].descriptor",
            "no entry of `matches` has `rls`",
        ),
        ("mode: Enforce", "allowOverride: {maximum: 5}".to_owned(), "allowOverride", "remove it"),
        (
            SERVICE,
            format!("matches: [{{methods: [GET], {RLS}}}]"),
            "matches[0].rls",
            "use an entry of its own",
        ),
        (
            SERVICE,
            "matches: [{rls: {domain: shop, entries: [{key: user, value: a, prefix: b}]}}]".to_owned(),
            "matches[0].rls.entries[0].prefix",
            "is not allowed beside `value`",
        ),
    ] {
        let violation = first_violation(spec, &limit);
        assert!(violation.starts_with(&format!("spec.limits[0].{path}: ")), "{limit}: {violation}");
        assert!(violation.contains(text), "{limit}: {violation}");
    }
    let violation =
        first_violation(&format!("{SERVICE}\n  selector: {{}}"), &format!("matches: [{{{RLS}}}]"));
    assert!(violation.contains("add Sidecar to"), "{violation}");
}

#[test]
fn checks_of_applications_need_no_conditions_and_reservations_may_be_of_gateways() {
    let accepts = |spec: &str, limit: &str| {
        let compiled = sluice_crds::compile(&policy(spec, limit), &Installation::default());
        let compiled = compiled.unwrap_or_else(|violations| panic!("{spec} {limit}: {violations:?}"));
        sluice_config::PreparedPolicy::from_json(&compiled.policy.to_json()).unwrap();
    };
    for spec in [SERVICE, BOTH] {
        accepts(spec, "matches: []");
        accepts(spec, "key: {parts: [{header: {name: x-user}}]}");
        accepts(spec, "countWhen: {statusCodes: ['401']}");
        accepts(spec, "cost: {response: {reserve: 5, jsonField: usage.total_tokens}}");
        accepts(spec, &format!("matches: [{{{RLS}}}], cost: {{response: {{reserve: 5, header: x-tokens}}}}"));
        accepts(&format!("{spec}\n  concurrency: [{{name: c, max: 2}}]"), "matches: []");
        let slots = format!(
            "concurrency: [{{name: c, max: 2, matches: [{{{RLS}}}], key: {{parts: [{{descriptor: {{key: user}}}}]}}}}]"
        );
        accepts(&format!("{spec}\n  {slots}"), "matches: []");
    }
    accepts(SERVICE, "cost: {response: {reserve: 5, reported: {}}}");
    let adaptive = "concurrency: [{name: c, adaptive: {gradient2: {minimum: 1, maximum: 50}}}]";
    let violation = first_violation(&format!("{SERVICE}\n  {adaptive}"), "matches: []");
    assert!(violation.starts_with("spec.concurrency[0].adaptive: needs the load of a pod"), "{violation}");
}
