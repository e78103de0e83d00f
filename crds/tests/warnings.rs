//! Warnings about settings that are valid but probably not intended.

use sluice_config::client_address::{AddressHeader, ClientAddress};
use sluice_crds::Installation;
use sluice_crds::manifest::{LoadedPolicy, load};

const ONE: &str = "{requests: 6, per: 1m}";
const TWO: &str = "{requests: 6, per: 1m}, {requests: 60, per: 1h}";

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
fn a_key_that_the_client_chooses_is_warned_about() {
    let loaded = load_one(
        "mode: Enforce",
        "limits: [{name: a, key: {parts: [{header: {name: x-user}}]}, rates: [{requests: 100, per: 1m}, {requests: 10, per: 1h}]}]",
    );
    let warnings: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    assert!(warnings.iter().any(|w| w.contains("rates[0]: has no effect")), "{warnings:?}");
    assert!(
        warnings
            .iter()
            .any(|w| w.contains("limits[0].key: a client can get a new counter by sending another value")),
        "{warnings:?}"
    );
}

#[test]
fn rates_without_effect_and_other_odd_algorithms_are_warned_about() {
    let window = "";
    for (rates, more, expected) in [
        (TWO, window, None),
        ("{requests: 10, per: 1m}, {requests: 500, per: 1h}", window, None),
        ("{requests: 10, per: 1m}, {requests: 600, per: 1h}", window, None),
        (
            "{requests: 1000, per: 1m}, {requests: 10, per: 1h}",
            window,
            Some("rates[0]: has no effect: rates[1] admits no more requests in a longer period"),
        ),
        (
            "{requests: 5, per: 1h}, {requests: 5, per: 1m}",
            window,
            Some("rates[1]: has no effect: rates[0] admits no more requests"),
        ),
        (
            "{requests: 5, per: 1m}, {requests: 500, per: 1h}",
            window,
            Some("rates[1]: has no effect: rates[0] admits 5 per 1m, which is 300 in 1h"),
        ),
        (
            "{requests: 5, per: 1m}, {requests: 500, per: 1h}",
            "algorithm: {slidingWindowLog: {}}",
            Some("300 in 1h"),
        ),
        (
            "{requests: 5, per: 1m}, {requests: 500, per: 1h}",
            "algorithm: {slidingWindowLog: {countDenied: true}}",
            None,
        ),
        (
            "{requests: 5, per: 1m}, {requests: 500, per: 1h}",
            "enforcement: {soft: {overPercent: 900, for: 1m}}",
            None,
        ),
        (
            "{requests: 10, per: 1s}, {requests: 100, per: 1m}",
            "algorithm: {tokenBucket: {burst: 5}}",
            Some("rates[0]: has no effect: rates[1] is slower"),
        ),
        ("{requests: 10, per: 1s}, {requests: 100, per: 1m}", "algorithm: {tokenBucket: {}}", None),
        (
            "{requests: 10, per: 1s}, {requests: 1000, per: 1m}",
            "algorithm: {gcra: {}}",
            Some("rates[1]: has no effect: rates[0] is slower"),
        ),
        (
            ONE,
            "algorithm: {slidingWindowCounter: {bound: Guaranteed}}",
            Some("rates[0]: with `bound: Guaranteed` and a single sub-window"),
        ),
        (
            "{requests: 6, per: 1m, subWindows: 1}",
            "algorithm: {slidingWindowCounter: {bound: Guaranteed}}",
            Some("only half of the limit"),
        ),
        (
            "{requests: 6, per: 1m, subWindows: 2}",
            "algorithm: {slidingWindowCounter: {bound: Guaranteed}}",
            None,
        ),
        (ONE, "algorithm: {leakyBucket: {maxWait: 60s}}", None),
        (
            ONE,
            "algorithm: {leakyBucket: {maxWait: 61s}}",
            Some("maxWait: is longer than 60s, and most clients and load balancers stop waiting"),
        ),
    ] {
        let limit = format!("limits:\n  - name: l\n    rates: [{rates}]\n    {more}");
        let warnings: Vec<_> =
            load_one("mode: Enforce", &limit).warnings.iter().map(ToString::to_string).collect();
        match expected {
            None => assert!(warnings.is_empty(), "{rates} {more}: {warnings:?}"),
            Some(text) => {
                assert!(warnings.len() == 1 && warnings[0].contains(text), "{rates} {more}: {warnings:?}");
            }
        }
    }
}

#[test]
fn a_limit_that_is_too_small_to_lease_is_warned_about() {
    let small = |top: &str, limits: &str| {
        let found =
            load_one(top, limits).warnings.into_iter().filter(|w| w.message.contains("too few for leases"));
        found.map(|warning| format!("{}: {}", warning.path, warning.message)).collect::<Vec<_>>()
    };
    let limits = |rates: &str, more: &str| format!("limits: [{{name: l, rates: [{rates}]{more}}}]");
    for (rates, more, warned) in [
        ("{requests: 49, per: 1m}", "", Some("rates[0]: 49 requests at once")),
        ("{requests: 50, per: 1m}", "", None),
        ("{requests: 40, per: 1m}, {requests: 20000, per: 24h}", "", Some("rates[0]: 40 requests at once")),
        ("{requests: 500, per: 1m}, {requests: 20, per: 1s}", "", Some("rates[1]: 20 requests at once")),
        ("{requests: 500, per: 1m}, {requests: 50, per: 1s}", "", None),
        ("{requests: 10, per: 1m}", ", algorithm: {fixedWindow: {}}", Some("rates[0]: 10 requests at once")),
        // The burst matters, not the rate.
        ("{requests: 10, per: 1m}", ", algorithm: {tokenBucket: {burst: 100}}", None),
        (
            "{requests: 100, per: 1m}",
            ", algorithm: {tokenBucket: {burst: 10}}",
            Some("rates[0]: 10 requests at once"),
        ),
        ("{requests: 100, per: 1m}", ", algorithm: {gcra: {}}", Some("rates[0]: 1 requests at once")),
        // These are never leased.
        ("{requests: 10, per: 1m}", ", algorithm: {slidingWindowLog: {}}", None),
        ("{requests: 10, per: 40ms}", "", None),
    ] {
        let found = small("consistency: Leased", &limits(rates, more));
        let expected = warned.map(|warned| {
            format!("spec.limits[0].{warned} are too few for leases, which save calls from 50 on: ")
        });
        assert_eq!(found.len(), usize::from(expected.is_some()), "{rates} {more}: {found:?}");
        assert!(expected.is_none_or(|expected| found[0].starts_with(&expected)), "{found:?}");
    }
    let two = "limits: [{name: a, rates: [{requests: 60000, per: 1m}]}, {name: b, rates: [{requests: 5, per: 1m}]}]";
    let found = small("consistency: Leased", two);
    assert!(found.len() == 1 && found[0].starts_with("spec.limits[1].rates[0]: "), "{found:?}");
    assert!(
        found[0].ends_with("Strict costs the same here: use it, or move this limit to a policy of its own"),
        "{found:?}"
    );
    for top in ["consistency: Strict", "consistency: Local"] {
        assert_eq!(small(top, two), Vec::<String>::new());
    }
}

#[test]
fn settings_of_the_store_without_the_intended_effect_are_warned_about() {
    let one = |top: &str, limits: &str| {
        let warnings: Vec<_> = load_one(top, limits).warnings.iter().map(ToString::to_string).collect();
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
    let slots = one("consistency: Leased", "concurrency: [{name: c, max: 3}]");
    assert!(slots.iter().any(|warning| warning.contains(none)), "{slots:?}");
    assert!(
        one("consistency: Local", &limit(""))[0]
            .contains("each pod admits the limit divided by the number of pods")
    );
    assert_eq!(one("onStoreFailure: Share", &limit("")), Vec::<String>::new());
}

#[test]
fn limits_by_address_without_trusted_proxies_and_concurrency_without_rates_are_warned_about() {
    let by_address = "limits: [{name: a, key: {parts: [{clientIP: {}}]}, rates: [{requests: 5, per: 1m}]}]";
    let warnings = |top: &str, limits: &str| -> Vec<String> {
        load_one(top, limits).warnings.iter().map(ToString::to_string).collect()
    };
    let found = warnings("mode: Enforce", by_address);
    assert!(
        matches!(&found[..], [one] if one.contains("limits[0].key.parts[0].clientIP: no proxy is trusted")),
        "{found:?}"
    );
    for trusted in ["[]", "[192.0.2.0/28]"] {
        let found = warnings(&format!("clientAddress: {{trustedProxies: {trusted}}}"), by_address);
        assert_eq!(found, [""; 0], "{trusted}");
    }
    for everyone in ["0.0.0.0/0", "::/0"] {
        let found = warnings(&format!("clientAddress: {{trustedProxies: [\"{everyone}\"]}}"), by_address);
        assert!(
            matches!(&found[..], [one] if one.contains("clientAddress.trustedProxies: trusts every peer")),
            "{found:?}"
        );
    }
    let found = warnings("mode: Enforce", "concurrency: [{name: a, max: 5}]");
    assert!(
        matches!(&found[..], [one] if one.contains("concurrency[0].max: limits the requests at the same time")),
        "{found:?}"
    );
    let adaptive = "concurrency: [{name: a, adaptive: {gradient2: {minimum: 4, maximum: 400}}}]";
    assert_eq!(warnings("mode: Enforce", adaptive), [""; 0]);
}

/// A limit by address protects another limit only if it counts the same requests.
#[test]
fn a_key_that_the_client_chooses_needs_a_limit_for_the_same_requests() {
    let limits = |matches: &str, other: &str| {
        format!(
            "limits: [{{name: a, {matches} key: {{parts: [{{header: {{name: x-user}}}}]}}, rates: [{{requests: 5, per: 1m}}]}}, \
             {{name: b, {other} key: {{parts: [{{clientIP: {{}}}}]}}, rates: [{{requests: 5, per: 1h}}]}}]"
        )
    };
    let paths = |path: &str| format!("matches: [{{path: {{prefix: {path}}}}}],");
    let top = "clientAddress: {trustedProxies: []}";
    let is_warned = |matches: &str, other: &str| !load_one(top, &limits(matches, other)).warnings.is_empty();
    assert!(!is_warned("", ""));
    assert!(!is_warned(&paths("/a"), ""));
    assert!(!is_warned(&paths("/a"), &paths("/a")));
    assert!(is_warned("", &paths("/a")));
    assert!(is_warned(&paths("/a"), &paths("/b")));
    assert!(is_warned("", "mode: Shadow,"));
}

#[test]
fn the_installation_trusts_proxies_for_policies_that_name_none() {
    let trusted = |networks: &[&str]| ClientAddress {
        trusted_proxies: networks.iter().map(|network| network.parse().unwrap()).collect(),
        header: AddressHeader::Forwarded,
    };
    let installation =
        Installation { client_address: Some(trusted(&["192.0.2.0/28"])), ..Installation::default() };
    let load_one = |top: &str| {
        let text = format!(
            "apiVersion: sluice.dev/v1alpha1\nkind: RateLimitPolicy\nmetadata: {{name: p}}\nspec:\n  {top}\n  limits: \
             [{{name: a, key: {{parts: [{{clientIP: {{}}}}]}}, rates: [{{requests: 5, per: 1m}}]}}]\n"
        );
        load(&text, &installation).unwrap().policies.remove(0)
    };
    let policy = load_one("mode: Enforce");
    assert_eq!(
        (policy.compiled.client_address, policy.warnings.len()),
        (installation.client_address.clone(), 0)
    );
    let policy = load_one("clientAddress: {trustedProxies: [], header: Forwarded}");
    assert_eq!((policy.compiled.client_address, policy.warnings.len()), (Some(trusted(&[])), 0));
}

#[test]
fn a_tier_that_the_client_chooses_is_warned_about() {
    let tier = |matches: &str, allowance: &str| {
        format!(
            "limits: [{{name: a, key: {{parts: [{{clientIP: {{}}}}]}}, rates: [{{requests: 5, per: 1m}}], \
             tiers: [{{name: t, matches: [{matches}], {allowance}}}]}}]"
        )
    };
    let warnings = |limits: &str| {
        let loaded = load_one("clientAddress: {trustedProxies: [10.0.0.1/32]}", limits);
        loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let header = "{headers: [{name: x-plan, exact: gold}]}";
    let found = warnings(&tier(header, "unlimited: {}"));
    assert!(
        found.len() == 1 && found[0].contains("limits[0].tiers[0]: a client can choose this tier"),
        "{found:?}"
    );
    assert_eq!(warnings(&tier(header, "deny: {}")), Vec::<String>::new());
    assert_eq!(warnings(&tier("{path: {prefix: /a}}", "unlimited: {}")), Vec::<String>::new());
    let host = tier("{hosts: [internal.example]}", "unlimited: {}");
    assert!(warnings(&host)[0].contains("a client can choose this tier"), "{:?}", warnings(&host));
    let inside = "{headers: [{name: x-plan, exact: gold}], clientCIDRs: [192.0.2.0/24]}";
    assert_eq!(warnings(&tier(inside, "unlimited: {}")), Vec::<String>::new());
    let beside = tier(header, "unlimited: {}").replace(
        "limits: [",
        "limits: [{name: b, key: {parts: [{clientIP: {}}]}, rates: [{requests: 50, per: 1m}]}, ",
    );
    assert_eq!(warnings(&beside), Vec::<String>::new(), "another limit counts every request");
}

#[test]
fn a_tier_with_fewer_requests_than_the_limit_is_warned_about() {
    let warnings = |matches: &str, requests: i64| {
        let limits = format!(
            "limits: [{{name: a, key: {{parts: [{{clientIP: {{}}}}]}}, rates: [{{requests: 5, per: 1m}}], \
             tiers: [{{name: t, matches: [{matches}], rates: [{{requests: {requests}, per: 1m}}]}}]}}]"
        );
        let loaded = load_one("clientAddress: {trustedProxies: [10.0.0.1/32]}", &limits);
        loaded.warnings.iter().map(ToString::to_string).collect::<Vec<_>>()
    };
    let found = warnings("{path: {prefix: /login}}", 4);
    assert!(
        found.len() == 1 && found[0].contains("limits[0].tiers[0]: admits less than `rates`"),
        "{found:?}"
    );
    assert_eq!(warnings("{path: {prefix: /login}}", 6), Vec::<String>::new());
    assert_eq!(warnings("{clientCIDRs: [192.0.2.0/24]}", 4), Vec::<String>::new());
}

#[test]
fn a_tier_by_networks_is_warned_about_while_no_proxy_is_trusted() {
    let limits = "limits: [{name: a, rates: [{requests: 5, per: 1m}], \
                  tiers: [{name: t, matches: [{clientCIDRs: [10.0.0.0/8]}], unlimited: {}}]}]";
    let loaded = load_one("mode: Enforce", limits);
    let found: Vec<_> = loaded.warnings.iter().map(ToString::to_string).collect();
    let expected = "limits[0].tiers[0].matches[0].clientCIDRs: no proxy is trusted";
    assert!(found.iter().any(|warning| warning.contains(expected)), "{found:?}");
    assert!(found.iter().any(|warning| warning.contains("gets this tier")), "{found:?}");
}

#[test]
fn a_pair_of_limits_that_leaves_a_gap_is_warned_about() {
    let warned = |top: &str, first: &str, second: &str, third: &str| {
        let anonymous = format!(
            "{{name: anonymous, matches: [{second}], key: {{parts: [{{clientIP: {{}}}}]}}, rates: [{ONE}]}}"
        );
        let limits = format!("limits: [{{name: known, rates: [{ONE}], {first}}}, {anonymous}{third}]");
        let loaded = load_one(top, &limits);
        let found =
            loaded.warnings.iter().map(ToString::to_string).find(|text| text.contains("leaves a gap"));
        found.map(|text| text.split(": ").nth(1).unwrap_or_default().to_owned())
    };
    let bearer = "matches: [{headers: [{name: authorization, prefix: \"Bearer \"}]}]";
    let absent = "{headers: [{name: Authorization, present: false}]}";
    let at = Some("spec.limits[1].matches[0].headers[0]".to_owned());
    assert_eq!(warned("mode: Enforce", bearer, absent, ""), at);
    assert_eq!(
        warned("mode: Enforce", bearer, "{headers: [{name: authorization, present: true, not: true}]}", ""),
        at
    );
    let jwt = "jwt: [{name: main, trusted: true}]";
    let claim = "key: {parts: [{jwtClaim: {jwt: main, claim: sub}}], onMissing: Skip}";
    assert_eq!(warned(jwt, claim, absent, ""), at);
    let cookie = "matches: [{cookies: [{name: s, regex: \"a.*\"}]}]";
    assert_eq!(
        warned("mode: Enforce", cookie, "{cookies: [{name: s, present: false}]}", ""),
        Some("spec.limits[1].matches[0].cookies[0]".to_owned())
    );
    // Each request is counted by one of them.
    let header = "key: {parts: [{header: {name: authorization}}], onMissing: Skip}";
    assert_eq!(warned("mode: Enforce", header, absent, ""), None);
    assert_eq!(warned(jwt, &claim.replace("Skip", "Shared"), absent, ""), None);
    let opposite = "{headers: [{name: authorization, prefix: \"Bearer \", not: true}]}";
    assert_eq!(warned("mode: Enforce", bearer, opposite, ""), None);
    let other_path = "{path: {prefix: /login}, headers: [{name: authorization, present: false}]}";
    assert_eq!(warned("mode: Enforce", bearer, other_path, ""), None);
    for third in ["", ", matches: [{headers: [{name: authorization, prefix: \"Bearer \", not: true}]}]"] {
        let third = format!(", {{name: third, rates: [{ONE}]{third}}}");
        assert_eq!(warned("mode: Enforce", bearer, absent, &third), None);
    }
}

#[test]
fn an_application_without_habits_is_warned_about() {
    let warned = |application: &str| {
        let loaded = load_one(
            &format!("application: {application}"),
            &format!("limits: [{{name: a, rates: [{ONE}]}}]"),
        );
        loaded.warnings.iter().any(|warning| warning.to_string().contains("spec.application: has no effect"))
    };
    assert!(warned("{}") && warned("{habits: []}"));
    assert!(!warned("{product: AspNet}") && !warned("{habits: [HeaderUnderscoresAreHyphens]}"));
}
