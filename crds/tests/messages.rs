//! Messages about values that others write so, and warnings about settings that are legal and not what was meant.

use sluice_crds::Installation;
use sluice_crds::manifest::load;

/// Returns what is wrong with a policy that has these lines in its spec, without the line numbers.
fn problems(spec: &str) -> Vec<String> {
    let text = format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p}}\nspec:\n  {}",
        spec.trim().replace('\n', "\n  ")
    );
    match load(&text, &Installation::default()) {
        Ok(_) => Vec::new(),
        Err(found) => found.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect(),
    }
}

/// Returns the warnings about a policy with these lines in its spec.
fn warnings(spec: &str) -> Vec<String> {
    let text = format!(
        "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p}}\nspec:\n  {}",
        spec.trim().replace('\n', "\n  ")
    );
    let loaded = load(&text, &Installation::default()).unwrap_or_else(|problems| panic!("{problems:?}"));
    let warnings = &loaded.policies[0].warnings;
    warnings.iter().map(|problem| format!("{}: {}", problem.path, problem.message)).collect()
}

/// A limit by address, with these lines beside it, of a policy that knows its proxies.
fn limit(lines: &str) -> String {
    format!(
        "clientAddress: {{trustedProxies: []}}\nlimits:\n- name: a\n  rates: [{{requests: 9, per: 1m}}]\n  {}",
        lines.trim().replace('\n', "\n  ")
    )
}

fn has(found: &[String], expected: &str) {
    assert!(found.iter().any(|text| text.contains(expected)), "{expected:?} is not in {found:#?}");
}

#[test]
fn a_value_of_another_form_gets_an_example_of_the_right_one() {
    has(&problems("limits: [{name: a, rates: ['10/s']}]"), "write {requests: 10, per: 1s}");
    has(&problems("limits: [{name: a, rates: [10 per second]}]"), "write {requests: 10, per: 1m}");
    let algorithm = |value: &str| problems(&limit(&format!("algorithm: {value}")));
    has(&algorithm("fixedWindow"), "must be an object, not a string: write {fixedWindow: {}}");
    has(&algorithm("LeakyBucket"), "write {leakyBucket: {maxWait: 1m}}");
    has(&algorithm("best"), "write {slidingWindowCounter: {}}, or with one of `fixedWindow`");
    has(&problems(&limit("key: {parts: [clientIP]}")), "write {clientIP: {}}");
    has(&problems(&limit("key: {parts: [header]}")), "write {header: {name: ...}}");
    has(&problems(&limit("matches: [{path: /v1}]")), "write {exact: ...}, or with one of `prefix`");
    has(&problems(&limit("matches: [{methods: [get]}]")), "\"get\" is not allowed: write GET");
    has(
        &problems(&limit("").replace("requests: 9, per: 1m", "requests: 0.5, per: 1s")),
        "write requests: 1, per: 2s",
    );
    has(
        &problems(&limit("").replace("requests: 9, per: 1m", "requests: 2.5, per: 1m")),
        "write requests: 5, per: 2m",
    );
    let targets = |kind: &str| problems(&format!("targetRefs: [{{kind: {kind}, name: a}}]\n{}", limit("")));
    has(&targets("HTTPRoute"), "name the Deployment or the Service to which the route leads");
    has(&targets("deployment"), "Write Deployment");
    let many: String =
        (0..33).map(|n| format!("- {{name: a{n}, rates: [{{requests: 9, per: 1m}}]}}\n")).collect();
    has(&problems(&format!("limits:\n{many}")), "Put the others into a second policy for the same pods");
}

#[test]
fn an_unknown_field_makes_no_other_message_false() {
    let found = problems(
        "jwt: [{name: main, issuer: https://a.example, jwksURI: https://a.example/jwks}]\n\
         limits: [{name: a, rates: [{requests: 9, per: 1m}], key: {parts: [{jwtClaim: {jwt: main, claim: sub}}]}}]",
    );
    assert!(found.iter().any(|text| text.contains("jwksURI: unknown field")), "{found:#?}");
    assert!(!found.iter().any(|text| text.contains("is not in spec.jwt")), "{found:#?}");
}

#[test]
fn a_problem_of_the_metadata_hides_no_other() {
    let text = "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nname: p\nmetadata: {namespace: Shop, label: {}}\n\
                spec: {limits: [{name: a, rates: [{requests: -1, per: 1m}]}]}\n";
    let found = load(text, &Installation::default()).unwrap_err();
    let found: Vec<_> = found.iter().map(ToString::to_string).collect();
    has(&found, "3: metadata.name: is required: `name` stands beside `metadata`");
    has(&found, "metadata.label: unknown field");
    has(&found, "metadata.namespace: ");
    has(&found, "spec.limits[0].rates[0].requests: -1 is out of range");
    assert!(!found.iter().any(|text| text.starts_with("3: name: unknown")), "{found:#?}");
}

#[test]
fn signs_of_other_languages_are_warned_of() {
    for (lines, expected) in [
        ("matches: [{path: {prefix: '/api/*'}}]", "the * in \"/api/*\" stands for itself"),
        ("matches: [{path: {exact: '/api/*'}}]", "the * in \"/api/*\" stands for itself"),
        ("matches: [{path: {template: '/a/{id}/*'}}]", "stands for itself"),
        ("matches: [{headers: [{name: x-plan, exact: 'gold*'}]}]", "`present: true` for any value"),
        ("matches: [{path: {exact: '/orders/*'}}]", "write `prefix: /orders` for all paths below /orders"),
        ("matches: [{path: {prefix: '/*'}}]", "write `prefix: /` for all paths below /, `template: /{id}`"),
        (
            "matches: [{path: {regex: '/orders/*'}}]",
            "* repeats the sign before it, so this matches /orders/ and not /orders/42: write prefix: /orders, or /orders/.*",
        ),
        ("matches: [{path: {regex: '/a/*/b'}}]", "matches /a//b and not /a/42/b: write /a/.*/b"),
        ("matches: [{path: {regex: '/orders*'}}]", "matches /orders and not /orders42: write /orders.*"),
        ("matches: [{path: {regex: '~ ^/api'}}]", "begins with ~"),
        ("matches: [{query: [{name: a, regex: '~x'}]}]", "begins with ~"),
        (
            "except: [{headers: [{name: x-internal, present: true}]}]",
            "a client can exempt itself by what it sends",
        ),
        (
            "matches: [{headers: [{name: x-internal, present: false}]}]",
            "a client can exempt itself by what it sends",
        ),
        (
            "matches: [{cookies: [{name: a, exact: b, not: true}]}]",
            "a client can exempt itself by what it sends",
        ),
    ] {
        has(&warnings(&limit(lines)), expected);
    }
    for quiet in [
        "matches: [{path: {prefix: /api}}]",
        "matches: [{path: {regex: '/a/.*'}}]",
        "matches: [{path: {regex: '/a/[^/]*/(b|c)*'}}]",
        "matches: [{path: {regex: '/a/\\d*'}}]",
        "matches: [{path: {regex: '/[a/*]+'}}]",
        "matches: [{headers: [{name: accept, exact: '*/*'}]}]",
        "matches: [{headers: [{name: accept, exact: 'text/*'}]}]",
        "except: [{clientCIDRs: [10.0.0.0/8], headers: [{name: x-internal, present: true}]}]",
        "except: [{path: {exact: /healthz}}]",
        "key: {parts: [{clientIP: {}}]}",
        "key: {parts: [{clientIP: {}}, {path: {}}]}",
        "matches: [{headers: [{name: x-internal, present: false}]}, {path: {prefix: /api}}]",
    ] {
        assert_eq!(warnings(&limit(quiet)), [""; 0], "{quiet}");
    }
}

#[test]
fn a_header_beside_the_address_still_gives_new_counters() {
    for parts in ["{clientIP: {}}, {header: {name: x-api-key}}", "{host: {}}, {clientIP: {}}"] {
        has(
            &warnings(&limit(&format!("key: {{parts: [{parts}]}}"))),
            "a client can get a new counter by sending another value",
        );
    }
    // Another limit counts the same requests by address.
    let both = limit("key: {parts: [{clientIP: {}}, {header: {name: x-api-key}}]}")
        + "\n- {name: b, rates: [{requests: 99, per: 1m}], key: {parts: [{clientIP: {}}]}}";
    assert_eq!(warnings(&both), [""; 0]);
}

#[test]
fn claims_small_numbers_and_long_windows_are_warned_of() {
    let claim = |name: &str| {
        warnings(&format!(
            "jwt: [{{name: main, issuer: https://a.example, audiences: [a], jwksFrom: {{configMapRef: {{name: k, key: k}}}}}}]\n\
             limits: [{{name: a, rates: [{{requests: 9, per: 1m}}], key: {{parts: [{{jwtClaim: {{jwt: main, claim: '{name}'}}}}]}}}}]"
        ))
    };
    has(&claim("realm_access.roles"), "a claim of its own");
    assert_eq!(claim("https://a.example/tenant"), [""; 0]);
    let rate =
        |numbers: &str, algorithm: &str| warnings(&limit(algorithm).replace("requests: 9, per: 1m", numbers));
    let key = "key: {parts: [{clientIP: {}}]}";
    for requests in [1, 2] {
        has(
            &rate(&format!("requests: {requests}, per: 1m"), key),
            "use slidingWindowLog, fixedWindow or gcra",
        );
    }
    assert_eq!(rate("requests: 3, per: 1m", key), [""; 0]);
    assert_eq!(rate("requests: 1, per: 1m", &format!("{key}\nalgorithm: {{gcra: {{}}}}")), [""; 0]);
    let fixed = format!("{key}\nalgorithm: {{fixedWindow: {{}}}}");
    has(&rate("requests: 9, per: 168h", &fixed), "windows of weeks begin on Thursdays");
    has(&rate("requests: 9, per: 720h", &fixed), "not by the months of the calendar");
    assert_eq!(rate("requests: 9, per: 24h", &fixed), [""; 0]);
    let first = format!("{key}\nalgorithm: {{fixedWindow: {{alignment: FirstRequest}}}}");
    assert_eq!(rate("requests: 9, per: 720h", &first), [""; 0]);
}

#[test]
fn the_same_warning_at_several_places_is_one() {
    let limits: String = (0..3)
        .map(|n| {
            format!("- {{name: a{n}, rates: [{{requests: 9, per: 1m}}], key: {{parts: [{{header: {{name: x}}}}]}}}}\n")
        })
        .collect();
    let found = warnings(&format!("clientAddress: {{trustedProxies: []}}\nlimits:\n{limits}"));
    assert_eq!(found.len(), 1, "{found:#?}");
    assert!(
        found[0].starts_with("spec.limits[0].key: ")
            && found[0].ends_with("(also at spec.limits[1].key, spec.limits[2].key)"),
        "{found:#?}"
    );
}

#[test]
fn objects_of_other_limiters_are_named() {
    let kuadrant = "apiVersion: kuadrant.io/v1\nkind: RateLimitPolicy\nmetadata: {name: a}\n";
    let found = load(kuadrant, &Installation::default()).unwrap_err();
    has(
        &[found[0].to_string()],
        "1: apiVersion: RateLimitPolicy is a kind of Kuadrant, which is skipped: https://github.com/sluice-dev/sluice/blob/main/docs/migration.md",
    );
    let ours = "---\napiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {name: b}\n\
                spec: {limits: [{name: a, rates: [{requests: 9, per: 1m}]}]}\n";
    let both = load(&format!("{kuadrant}{ours}"), &Installation::default()).unwrap();
    assert_eq!((both.policies.len(), both.skipped.len()), (1, 1));
    let mistaken = ours.replace("sluice.dev", "sluice.io");
    let found = load(&mistaken, &Installation::default()).unwrap_err();
    has(
        &[found[0].to_string()],
        "\"sluice.io/v1alpha1\" has no RateLimitPolicy of Sluice: use sluice.dev/v1alpha1",
    );
}

#[test]
fn metadata_of_another_form_is_a_problem_and_no_panic() {
    for metadata in ["shop", "[]", "1", "true"] {
        let text = format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {metadata}\nspec: {{}}\n"
        );
        let found = load(&text, &Installation::default()).unwrap_err();
        has(&[found[0].to_string()], "3: metadata: must be an object: write metadata: {name: NAME}");
    }
}

#[test]
fn an_unknown_field_inside_a_limit_hides_no_problem_of_another_one() {
    let found = problems(
        "limits:\n\
         - {name: a, rates: [{requests: 9, per: 1m}], algorithm: {fixedWindow: {}, foo: 1}}\n\
         - {name: b, rates: [{requests: 9, per: 1m}, {requests: 5, per: 1m}]}",
    );
    has(&found, "spec.limits[0].algorithm.foo: unknown field");
    has(&found, "spec.limits[1].rates[1].per: is the same period as that of rates[0]");
}

#[test]
fn a_field_that_is_misspelled_gets_the_right_name() {
    has(
        &problems("onStoreFailre: Allow\nlimits: []"),
        "spec.onStoreFailre: unknown field: did you mean onStoreFailure? ",
    );
    has(&problems(&limit("matchs: []")), "matchs: unknown field: did you mean matches? ");
    let rate = |rate: &str| problems(&limit("").replace("requests: 9, per: 1m", rate));
    has(&rate("requests: 9, period: 1m"), "period: unknown field: did you mean per? ");
    has(&rate("limit: 9, per: 1m"), "limit: unknown field: did you mean requests? ");
    for (lines, expected) in [
        ("matches: [{headers: [{name: x, value: y}]}]", "value: unknown field: did you mean exact? "),
        ("onLimit: {reject: {status: 999}}", "status: unknown field: did you mean statusCode? "),
        ("key: {header: {name: x}}", "header: unknown field: write {parts: [{header: ...}]}. "),
    ] {
        has(&problems(&limit(lines)), expected);
    }
    has(&problems(&limit("ratePerSecond: 5")), "ratePerSecond: unknown field: known fields are ");
}

#[test]
fn values_of_other_languages_get_the_right_form() {
    let rate = |rate: &str| problems(&limit("").replace("requests: 9, per: 1m", rate));
    has(&rate("requests: 9, per: 1d"), "the longest unit is the hour, write 24h");
    has(&rate("requests: 9, per: 2w"), "write 336h");
    has(
        &rate("requests: '10', per: 1m"),
        "must be an integer, not a string: write 10, without quotation marks",
    );
    has(&problems(&limit("matches: [{methods: GET}]")), "must be a list, not a string: write [GET]");
    has(&problems(&limit("matches: [{hosts: '*.a.b'}]")), "write [\"*.a.b\"]");
    has(
        &problems(&limit("matches: {methods: [GET]}")),
        "must be a list, not an object: write - before it, or [ ] around it",
    );
    has(&problems(&limit("cost: 5")), "write {request: {number: 5}}");
    has(&problems(&limit("maxKeys: 1")), "1 is out of range: at least 10000 is required");
    has(&problems(&limit("when: 'request.method = \"GET\"'")), "Write == to compare");
    has(
        &problems(&limit("when: 'request.time.getHours() > 5'")),
        "asks for the time, which expressions do not know",
    );
    let long = "x".repeat(1 << 20);
    let found = problems(&limit(&format!("key: {{parts: [{{header: {{name: 'a {long}'}}}}]}}")));
    assert!(found.iter().all(|text| text.len() < 3_000), "{} bytes", found[0].len());
}

#[test]
fn patterns_are_told_in_words() {
    for (lines, expected) in [
        (
            "key: {parts: [{header: {name: 'x api'}}]}",
            "a name has letters, digits and -, without spaces and colons",
        ),
        ("matches: [{path: {prefix: api}}]", "\"api\" is not allowed: it begins with /"),
        ("matches: [{hosts: ['https://a.example']}]", "write a host without scheme, port and path"),
        ("countWhen: {statusCodes: ['4xy']}", "write a status such as 401, or a class such as 5xx"),
    ] {
        has(&problems(&limit(lines)), expected);
    }
    has(&problems(&limit("").replace("name: a", "name: a_b")), "use lower-case letters, digits and -");
}

#[test]
fn methods_and_regular_expressions_that_match_little_are_warned_of() {
    has(
        &warnings(&limit("matches: [{methods: [GTE]}]")),
        "methods[0]: GTE is not a known method: is it GET?",
    );
    has(
        &warnings(&limit("matches: [{path: {regex: /api}}]")),
        "only this very text matches: write exact or prefix",
    );
    for quiet in ["matches: [{methods: [PURGE]}]", "matches: [{path: {regex: '/api/.*'}}]"] {
        assert_eq!(warnings(&limit(quiet)), [""; 0], "{quiet}");
    }
}

#[test]
fn a_header_that_is_verified_is_not_warned_of() {
    let key = |name: &str| format!("key: {{parts: [{{header: {{name: x-api-key{name}}}}}]}}");
    has(&warnings(&limit(&key(""))), "a client can get a new counter by sending another value");
    has(&warnings(&limit(&key(""))), "name it in the header's verifiedBy");
    assert_eq!(warnings(&limit(&key(", verifiedBy: the gateway"))), [""; 0]);
    // What one part promises, another does not.
    let both =
        "key: {parts: [{header: {name: x-api-key, verifiedBy: the gateway}}, {header: {name: x-user}}]}";
    has(&warnings(&limit(both)), "a client can get a new counter");
    // A limit by a verified header counts the requests of another one.
    let other =
        limit(&key("")) + "\n- {name: b, rates: [{requests: 99, per: 1m}], " + &key(", verifiedBy: us") + "}";
    assert_eq!(warnings(&other), [""; 0]);
    has(&problems(&limit(&key(", verifiedBy: ''"))), "verifiedBy: must not be empty");
}
