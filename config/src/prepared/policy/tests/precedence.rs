//! The order in which the parts of one limit decide about a request that several of them name.

use http::{HeaderMap, HeaderName, HeaderValue, Method, Uri};

use crate::overrides::{DENY, Override, OverrideTable, UNLIMITED, client_digest};
use crate::policy::BlobHash;
use crate::prepared::Blobs;
use crate::prepared::Explained;
use crate::{KeySecret, PreparedPolicy, RequestAttributes};

/// Returns one rate as JSON.
fn rate(requests: u64) -> String {
    format!(r#"{{"requests":{requests},"periodMillis":1000,"algorithm":{{"fixedWindow":"Clock"}}}}"#)
}

/// Returns a tier as JSON.
fn tier(name: &str, condition: &str, allowance: &str) -> String {
    format!(r#"{{"name":"{name}",{condition},"allowance":{allowance}}}"#)
}

/// Prepares a policy with one limit of two requests for each customer, and with further fields of its rates.
fn policy(more: &str, blobs: &Blobs) -> PreparedPolicy {
    let base = rate(2);
    let json = format!(
        r#"{{"namespace":"n","name":"p","mode":"Enforce","onStoreFailure":"Allow","consistency":"Strict",
        "ambiguousPaths":"Match",
        "expressions":{{"is /a/b":{{"root":{{"compare":["equal",[{{"attribute":"path"}},{{"text":"/a/b"}}]]}}}}}},
        "limits":[{{"name":"l","mode":"Enforce","onMissing":"Shared",
        "key":[{{"header":{{"name":"x-customer"}}}}],
        "except":[{{"headers":[{{"name":"x-exempt","present":true}}]}}],
        "kind":{{"rates":{{"base":[{base}],{more}}}}}}}]}}"#
    );
    PreparedPolicy::with_blobs(&json, blobs).unwrap()
}

/// Returns the number of requests that the deciding rate admits, or why none decides.
fn decision(policy: &PreparedPolicy, path: &str, headers: &[(&'static str, &str)]) -> String {
    let uri: Uri = path.parse().unwrap();
    let headers: HeaderMap = headers
        .iter()
        .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_str(value).unwrap()))
        .collect();
    let request = RequestAttributes::new(&Method::GET, &uri, &headers, [192, 0, 2, 1].into());
    let limit = &policy.limits[0];
    match policy.explain(limit, &request, &request.path_readings(), &KeySecret::new([1; 16])) {
        Explained::Counts { rates, .. } => {
            let set = &limit.rate_sets()[usize::from(rates)];
            set.deciding().map(|rate| rate.requests.get().to_string()).collect()
        }
        Explained::Denies(reason) | Explained::DoesNotApply(reason) => reason,
    }
}

#[test]
fn an_exemption_precedes_an_override_an_override_all_tiers_and_a_tier_those_after_it() {
    let names = [DENY, UNLIMITED, "large"];
    let line = |client: &str, plan| Override { client: client_digest(client.as_bytes()), plan, until: 0 };
    let lines = vec![line("mallory", 0), line("acme", 1), line("initech", 2)];
    let table = OverrideTable::encode(names, lines).unwrap();
    let hash = BlobHash::of(&table);
    let mut blobs = Blobs::default();
    blobs.insert(table.into());

    let plan = |value: &str| format!(r#""matches":[{{"headers":[{{"name":"x-plan",{value}}}]}}]"#);
    let tiers = [
        tier("banned", &plan(r#""exact":"banned""#), r#""deny""#),
        tier("gold", &plan(r#""prefix":"gold""#), &format!(r#"{{"rates":[{}]}}"#, rate(20))),
        // Never decides: whoever matches it also matches the tier before.
        tier("golden", &plan(r#""exact":"golden""#), r#""deny""#),
        tier("partner", &plan(r#""exact":"partner""#), r#""unlimited""#),
    ];
    let large = format!(r#"{{"name":"large","allowance":{{"rates":[{}]}}}}"#, rate(50));
    let policy =
        policy(&format!(r#""tiers":[{}],"plans":[{large}],"overrides":"{hash}""#, tiers.join(",")), &blobs);

    for (customer, plan, expected) in [
        ("mallory", "partner", "an override admits nothing"),
        ("mallory", "gold", "an override admits nothing"),
        ("mallory", "", "an override admits nothing"),
        ("acme", "banned", "an override admits everything"),
        ("acme", "gold", "an override admits everything"),
        ("initech", "banned", "50"),
        ("initech", "gold", "50"),
        ("initech", "partner", "50"),
        ("other", "banned", "tier banned admits nothing"),
        ("other", "gold", "20"),
        ("other", "golden", "20"),
        ("other", "partner", "tier partner admits everything"),
        ("other", "tin", "2"),
        ("other", "", "2"),
    ] {
        let headers = [("x-customer", customer), ("x-plan", plan)];
        assert_eq!(decision(&policy, "/", &headers), expected, "{customer} {plan}");
        let exempt = [&headers[..], &[("x-exempt", "1")]].concat();
        assert_eq!(decision(&policy, "/", &exempt), "except[0] applies", "{customer} {plan}");
    }
}

#[test]
fn a_tier_that_denies_needs_any_reading_of_a_path_and_the_others_need_all() {
    let path = r#""matches":[{"path":{"exact":"/a/b"}}]"#;
    let when = r#""when":"is /a/b""#;
    let rates = format!(r#"{{"rates":[{}]}}"#, rate(20));
    let decisions = |condition: &str, target: &str| {
        [r#""deny""#, r#""unlimited""#, &rates].map(|allowance| {
            let tier = format!(r#""tiers":[{}]"#, tier("t", condition, allowance));
            decision(&policy(&tier, &Blobs::default()), target, &[]) != "2"
        })
    };
    // Whether each kind of tier applies. Some applications understand those between the first and the last as /a/b, and
    // others do not.
    for (target, in_matches, in_when) in [
        ("/a/b", [true, true, true], [true, true, true]),
        ("/a/%62", [true, false, false], [true, false, false]),
        ("/a//b", [true, false, false], [true, false, false]),
        ("/a%2Fb", [true, false, false], [true, false, false]),
        ("/a%5Cb", [true, false, false], [true, false, false]),
        ("/x/../a/b", [true, false, false], [true, false, false]),
        ("/a/b;c=d", [true, false, false], [true, false, false]),
        ("/A/b", [true, false, false], [false, false, false]),
        ("/a/c", [false, false, false], [false, false, false]),
    ] {
        assert_eq!(decisions(path, target), in_matches, "{target}");
        assert_eq!(decisions(when, target), in_when, "{target}");
    }
}
