//! What `sluice check` says about a file: where, what is wrong, what is allowed.

use sluice_crds::manifest::{Loaded, load};

fn manifest(spec: &str) -> String {
    format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p, namespace: n}}\nspec:\n{spec}"
    )
}

fn errors(text: &str) -> Vec<String> {
    load(text).expect_err("this must be refused").iter().map(ToString::to_string).collect()
}

fn one(text: &str) -> Loaded {
    load(text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}")).remove(0)
}

#[test]
fn check_names_the_line_the_field_and_what_is_allowed() {
    let text = manifest(
        "  limits:\n  - name: a\n    rates:\n    - {requests: 1, per: 1m}\n    - requests: 2\n      per: 1d\n",
    );
    let errors = errors(&text);
    assert_eq!(errors.len(), 1);
    assert!(errors[0].starts_with("10: spec.limits[0].rates[1].per: \"1d\" is no duration"), "{errors:?}");
}

#[test]
fn check_refuses_bad_input_with_its_path() {
    let limit = |body: &str| {
        manifest(&format!("  limits:\n  - name: a\n    rates: [{{requests: 1, per: 1m}}]\n{body}"))
    };
    for (text, path, word) in [
        (manifest("  limits: []\n"), "spec.limits", "1 entries at least"),
        (manifest("  limits: 3\n"), "spec.limits", "must be a list, not an integer"),
        (manifest("  {}\n"), "spec.limits", "is required"),
        (
            manifest("  limits: [{name: a, rates: [{requests: -1, per: 1m}]}]\n"),
            "spec.limits[0].rates[0].requests",
            "out of range",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 1099511627777, per: 1m}]}]\n"),
            "spec.limits[0].rates[0].requests",
            "out of range",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 99999999999999999999, per: 1m}]}]\n"),
            "spec.limits[0].rates[0].requests",
            "",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: '5', per: 1m}]}]\n"),
            "spec.limits[0].rates[0].requests",
            "must be an integer, not a string",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 1.5, per: 1m}]}]\n"),
            "spec.limits[0].rates[0].requests",
            "must be an integer",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 1, per: 8785h}]}]\n"),
            "spec.limits[0].rates[0].per",
            "out of range",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 1, per: 0s}]}]\n"),
            "spec.limits[0].rates[0].per",
            "out of range",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 1, per: 60s}, {requests: 2, per: 1m}]}]\n"),
            "spec.limits[0].rates[1].per",
            "same period",
        ),
        (
            manifest("  limits: [{name: A, rates: [{requests: 1, per: 1m}]}]\n"),
            "spec.limits[0].name",
            "must match",
        ),
        (
            manifest("  limits: [{name: '', rates: [{requests: 1, per: 1m}]}]\n"),
            "spec.limits[0].name",
            "must not be empty",
        ),
        (
            manifest(
                "  limits: [{name: a, rates: [{requests: 1, per: 1m}]}, {name: a, rates: [{requests: 1, per: 1m}]}]\n",
            ),
            "spec.limits[1].name",
            "stands already in spec.limits[0]",
        ),
        (
            manifest("  mode: Loud\n  limits: [{name: a, rates: [{requests: 1, per: 1m}]}]\n"),
            "spec.mode",
            "one of Enforce, Shadow",
        ),
        (limit("    key: {parts: []}\n"), "spec.limits[0].key.parts", "1 entries at least"),
        (
            limit("    key: {parts: [{}]}\n"),
            "spec.limits[0].key.parts[0]",
            "exactly one of header, clientIP is needed, none is there",
        ),
        (
            limit("    key: {parts: [{header: {name: x}, clientIP: {}}]}\n"),
            "spec.limits[0].key.parts[0]",
            "there are header and clientIP",
        ),
        (
            limit("    key: {parts: [{header: {name: 'a b'}}]}\n"),
            "spec.limits[0].key.parts[0].header.name",
            "must match",
        ),
        (
            limit("    key: {parts: [{clientIP: {ipv4Prefix: 33}}]}\n"),
            "spec.limits[0].key.parts[0].clientIP.ipv4Prefix",
            "1 to 32",
        ),
        (
            limit("    algorithm: {fixedWindow: {}, slidingWindowCounter: {}}\n"),
            "spec.limits[0].algorithm",
            "exactly one",
        ),
        (
            manifest("  limits: [{name: a, rates: [{requests: 1, per: 1 minute}]}]\n"),
            "spec.limits[0].rates[0].per",
            "such as 1h30m",
        ),
        (
            limit("    algorithm: {magic: {}}\n"),
            "spec.limits[0].algorithm.magic",
            "unknown field; known here: fixedWindow, gcra, leakyBucket, slidingWindowCounter, slidingWindowLog, tokenBucket",
        ),
        (limit("    matches: [{}]\n"), "spec.limits[0].matches[0]", "says nothing"),
        (
            limit("    matches: [{path: {regex: '('}}]\n"),
            "spec.limits[0].matches[0].path.regex",
            "is no regular expression",
        ),
        (
            limit("    matches: [{path: {prefix: v1}}]\n"),
            "spec.limits[0].matches[0].path.prefix",
            "must match ^/",
        ),
        (
            limit("    matches: [{path: {exact: /a/../b}}]\n"),
            "spec.limits[0].matches[0].path.exact",
            "write \"/b\"",
        ),
        (limit("    matches: [{methods: [get]}]\n"), "spec.limits[0].matches[0].methods[0]", "must match"),
        (
            limit("    matches: [{headers: [{name: a, exact: b, present: true}]}]\n"),
            "spec.limits[0].matches[0].headers[0]",
            "there are exact and present",
        ),
        (
            limit("  clientAddress: {trustedProxies: [10.0.0.0/33]}\n"),
            "spec.clientAddress.trustedProxies[0]",
            "is no network",
        ),
        (limit("  selector: {matchExpressions: [{key: a, operator: Near}]}\n"), "spec.selector", ""),
        (limit("  limts: 1\n"), "spec.limts", "unknown field"),
    ] {
        let errors = errors(&text);
        assert!(
            errors.iter().any(|e| e.contains(&format!(": {path}: ")) && e.contains(word)),
            "{path}: {word}\n{errors:?}\n{text}"
        );
    }
}

#[test]
fn check_refuses_more_regular_expressions_than_sidecars_have_memory_for() {
    let matches: String = (0..9).map(|n| format!("{{path: {{regex: '/{n}.*'}}}},")).collect();
    let limits: String = (0..8)
        .map(|n| format!("  - {{name: l{n}, rates: [{{requests: 1, per: 1m}}], matches: [{matches}]}}\n"))
        .collect();
    let errors = errors(&manifest(&format!("  limits:\n{limits}")));
    assert_eq!(errors.len(), 1);
    assert!(errors[0].contains("spec.limits[7].matches[1].path.regex: is one too many"), "{errors:?}");
}

#[test]
fn check_refuses_what_is_no_policy() {
    for (text, word) in [
        ("a: [", "no valid YAML"),
        ("", "there is no RateLimitPolicy"),
        ("- 1\n- 2\n", "a Kubernetes object is needed"),
        ("kind: RateLimitPolicy\n", "apiVersion: is required"),
        ("apiVersion: sluice.dev/v9\nkind: RateLimitPolicy\n", "not known"),
        ("apiVersion: v1\nkind: Pod\n", "there is no RateLimitPolicy in this file, only Pod"),
        (
            "apiVersion: sluice.dev/v1alpha1\nkind: RatelimitPolicy\n",
            "kind: \"RatelimitPolicy\" is not known: RateLimitPolicy",
        ),
        (
            "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: T_x}\n",
            "3: metadata.name: \"T_x\" is no name",
        ),
        (
            "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata:\n  name: a\n  namespce: b\n",
            "5: metadata.namespce: unknown field",
        ),
        ("apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nspec: {}\n", "metadata.name: is required"),
        ("a: 1\na: 2\n", "no valid YAML"),
    ] {
        let errors = errors(text);
        assert!(errors.iter().any(|e| e.contains(word)), "{word}: {errors:?}");
    }
}

#[test]
fn check_reads_several_documents_and_lists() {
    let policy = manifest("  limits: [{name: a, rates: [{requests: 1, per: 1m}]}]\n");
    let text = format!(
        "---\n{policy}---\napiVersion: v1\nkind: Service\nmetadata: {{name: s}}\n---\n{}",
        policy.replace("name: p", "name: q")
    );
    assert_eq!(load(&text).unwrap().len(), 2);
    assert!(errors(&format!("{policy}---\n{policy}"))[0].contains("stands already"));
    let list = "apiVersion: v1\nkind: List\nitems:\n- apiVersion: sluice.dev/v1alpha1\n  kind: RateLimitPolicy\n  metadata: {name: p}\n  spec: {limits: [{name: a, rates: [{requests: 1, per: 1x}]}]}\n";
    assert!(errors(list)[0].starts_with("7: spec.limits[0].rates[0].per"), "{:?}", errors(list));
}

#[test]
fn check_warns_of_what_is_legal_and_probably_wrong() {
    let loaded = one(&manifest(
        "  limits:\n  - name: a\n    key: {parts: [{header: {name: x-user}}]}\n    rates: [{requests: 100, per: 1m}, {requests: 10, per: 1h}]\n",
    ));
    let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert!(warnings.iter().any(|w| w.contains("rates[0]: can never bind")), "{warnings:?}");
    assert!(
        warnings.iter().any(|w| w.contains("limits[0].key: a client that changes the header")),
        "{warnings:?}"
    );
}

#[test]
fn equal_policies_compile_to_equal_hashes() {
    let text = manifest("  limits: [{name: a, rates: [{requests: 1, per: 1m}]}]\n");
    let other = text.replace("per: 1m", "per: 60s").replace("  limits", "  mode: Enforce\n  limits");
    assert_eq!(one(&text).compiled.to_json(), one(&other).compiled.to_json());
}

/// A policy with this at its top and this list of limits, or whatever stands there.
fn counted(top: &str, limits: &str) -> sluice_crds::manifest::Loaded {
    let text = format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p, namespace: n}}\nspec:\n  {top}\n  {limits}\n"
    );
    load(&text).unwrap_or_else(|problems| panic!("{problems:?}\n{text}")).remove(0)
}

#[test]
fn consistency_and_shares_travel_and_leave_the_hash_of_what_does_without() {
    let limits = "limits: [{name: l, rates: [{requests: 6, per: 1m}]}]";
    let plain = counted("mode: Enforce", limits).compiled;
    assert!(!plain.to_json().contains("consistency"), "{}", plain.to_json());
    let strict = counted("consistency: Strict", limits).compiled;
    assert_eq!(strict.to_json(), plain.to_json());
    for word in ["Leased", "Local"] {
        let policy = counted(&format!("consistency: {word}\n  onStoreFailure: Share"), limits).compiled;
        let json = policy.to_json();
        assert!(json.contains(&format!(r#""onStoreFailure":"Share","consistency":"{word}""#)), "{json}");
        let prepared = sluice_config::PreparedPolicy::from_json(&json).expect("a sidecar knows it");
        assert_eq!(
            format!("{:?} {:?}", prepared.consistency, prepared.on_store_failure),
            format!("{word} Share")
        );
    }
}

#[test]
fn a_summary_says_mode_consistency_and_failure_where_they_are_not_the_default() {
    let limits = "limits: [{name: l, rates: [{requests: 6, per: 1m}]}]";
    let shadow = "limits: [{name: l, rates: [{requests: 6, per: 1m}], mode: Shadow, algorithm: {gcra: {}}}]";
    let all = "mode: Shadow\n  consistency: Leased\n  onStoreFailure: Share";
    for (top, limits, expected) in [
        ("mode: Enforce\n  consistency: Strict\n  onStoreFailure: Allow", limits, "l 6/1m"),
        ("mode: Shadow", limits, "l 6/1m; Shadow"),
        ("mode: Shadow", shadow, "l 6/1m [gcra]; Shadow"),
        ("mode: Enforce", shadow, "l 6/1m [gcra, Shadow]"),
        ("consistency: Local", limits, "l 6/1m; Local"),
        ("onStoreFailure: Deny", limits, "l 6/1m; onStoreFailure Deny"),
        (all, limits, "l 6/1m; Shadow, Leased, onStoreFailure Share"),
    ] {
        assert_eq!(sluice_crds::summary::whole(&counted(top, limits).compiled), expected, "{top}");
    }
}

#[test]
fn check_warns_of_limits_that_are_too_small_to_lease_with_their_path() {
    let small = |top: &str, limits: &str| {
        let found = counted(top, limits)
            .warnings
            .into_iter()
            .filter(|w| w.message.contains("leaves little to lease"));
        found.map(|warning| format!("{}: {}", warning.path, warning.message)).collect::<Vec<_>>()
    };
    let limits = |rates: &str, more: &str| format!("limits: [{{name: l, rates: [{rates}]{more}}}]");
    for (rates, more, warned) in [
        ("{requests: 49, per: 1m}", "", Some("rates[0]: a number of 49")),
        ("{requests: 50, per: 1m}", "", None),
        ("{requests: 40, per: 1m}, {requests: 20000, per: 24h}", "", Some("rates[0]: a number of 40")),
        ("{requests: 500, per: 1m}, {requests: 20, per: 1s}", "", Some("rates[1]: a number of 20")),
        ("{requests: 500, per: 1m}, {requests: 50, per: 1s}", "", None),
        ("{requests: 10, per: 1m}", ", algorithm: {fixedWindow: {}}", Some("rates[0]: a number of 10")),
        // What is taken from is the burst, whatever the rate.
        ("{requests: 10, per: 1m}", ", algorithm: {tokenBucket: {burst: 100}}", None),
        (
            "{requests: 100, per: 1m}",
            ", algorithm: {tokenBucket: {burst: 10}}",
            Some("rates[0]: a burst of 10"),
        ),
        ("{requests: 100, per: 1m}", ", algorithm: {gcra: {}}", Some("rates[0]: a burst of 1")),
        // Not leased, however many.
        ("{requests: 10, per: 1m}", ", algorithm: {slidingWindowLog: {}}", None),
        ("{requests: 10, per: 40ms}", "", None),
    ] {
        let found = small("consistency: Leased", &limits(rates, more));
        let expected = warned.map(|warned| {
            format!("spec.limits[0].{warned} leaves little to lease, as everything below 50: ")
        });
        assert_eq!(found.len(), usize::from(expected.is_some()), "{rates} {more}: {found:?}");
        assert!(expected.is_none_or(|expected| found[0].starts_with(&expected)), "{found:?}");
    }
    let two = "limits: [{name: a, rates: [{requests: 60000, per: 1m}]}, {name: b, rates: [{requests: 5, per: 1m}]}]";
    let found = small("consistency: Leased", two);
    assert!(found.len() == 1 && found[0].starts_with("spec.limits[1].rates[0]: "), "{found:?}");
    assert!(
        found[0].ends_with("Strict then costs the same: use it, or give this limit a policy of its own"),
        "{found:?}"
    );
    for top in ["consistency: Strict", "consistency: Local"] {
        assert_eq!(small(top, two), Vec::<String>::new());
    }
}

#[test]
fn check_warns_of_leases_that_cannot_be_and_says_what_local_means() {
    let one = |top: &str, limits: &str| {
        let warnings: Vec<_> = counted(top, limits).warnings.iter().map(ToString::to_string).collect();
        warnings
    };
    let limit = |more: &str| format!("limits: [{{name: l, rates: [{{requests: 6, per: 1m}}]{more}}}]");
    let none = "spec.consistency: no limit of this policy can be leased";
    for (more, warned) in [
        ("", false),
        (", algorithm: {fixedWindow: {}}", false),
        (", algorithm: {tokenBucket: {}}", false),
        (", algorithm: {slidingWindowLog: {}}", true),
        (", algorithm: {leakyBucket: {maxWait: 1s}}", true),
        (", algorithm: {tokenBucket: {warmUp: {period: 10s}}}", true),
        (", enforcement: {soft: {overPercent: 20, for: 30s}}", true),
        (
            ", enforcement: {elastic: {requests: 20, utilizationBelowPercent: 70, capacity: {inFlight: 40}}}",
            true,
        ),
    ] {
        let found = one("consistency: Leased", &limit(more));
        assert_eq!(found.iter().any(|warning| warning.contains(none)), warned, "{more}: {found:?}");
    }
    let short = "limits: [{name: l, rates: [{requests: 6, per: 40ms}]}]";
    assert!(one("consistency: Leased", short)[0].contains(none));
    assert!(one("consistency: Leased", "concurrency: [{name: c, max: 3}]")[0].contains(none));
    assert!(one("consistency: Local", &limit(""))[0].contains("each pod counts alone"));
    assert_eq!(one("onStoreFailure: Share", &limit("")), Vec::<String>::new());
    assert!(
        one("onStoreFailure: Share", "concurrency: [{name: c, max: 3}]")[0].contains("cannot be shared out")
    );
}
