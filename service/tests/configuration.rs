//! ratelimit's rules: what is refused, and what stays in force then.

use sluice_service::compat::compile::{AlgorithmName, CompileOptions, compile};
use sluice_service::compat::config::DomainConfig;

use crate::support::{Caller, RULES, configs, metric, of, start, start_with};

fn error(yaml: &[&str]) -> String {
    let configs = yaml.iter().enumerate().map(|(n, yaml)| {
        let config = DomainConfig::from_yaml(yaml).map_err(|error| format!("{n}.yaml: {error}"))?;
        Ok((format!("{n}.yaml"), config))
    });
    let compiled = configs
        .collect::<Result<Vec<_>, String>>()
        .and_then(|configs| compile(&configs, &RULES).map_err(|error| error.to_string()));
    compiled.expect_err("the configuration is wrong")
}

#[test]
fn a_wrong_rule_is_named_with_its_field_and_the_remedy() {
    let descriptors = |text: &str| error(&[&format!("domain: d\ndescriptors:\n{text}")]);
    for (text, expected) in [
        ("- value: x\n", "0.yaml: descriptors[0].key: is empty"),
        (
            "- key: a\n- key: a\n",
            "0.yaml: line 4: descriptors[1]: \"a\" is there twice: key and value together must be unique in their list",
        ),
        (
            "- key: a\n  descriptors:\n  - key: b\n    rate_limit: {unit: fortnight, requests_per_unit: 1}\n",
            "0.yaml: line 5: descriptors[0].descriptors[0].rate_limit.unit: \"fortnight\" is none of second, minute, hour, day, month, year, week",
        ),
        (
            "- key: a\n  rate_limit: {requests_per_unit: 1}\n",
            "0.yaml: line 3: descriptors[0].rate_limit.unit: \"\" is none of second, minute, hour, day, month, year, week",
        ),
        (
            "- key: a\n  rate_limit: {unit: day, unlimited: true}\n",
            "0.yaml: line 3: descriptors[0].rate_limit.unit: not allowed beside unlimited: true",
        ),
        (
            "- key: a\n  rate_limit: {unit: day, requests_per_unit: 1, name: n, replaces: [{name: n}]}\n",
            "0.yaml: line 3: descriptors[0].rate_limit.replaces[0].name: \"n\" is the rule itself",
        ),
        (
            "- key: a\n  rate_limit: {unit: day, requests_per_unit: 1, replaces: [{}]}\n",
            "0.yaml: line 3: descriptors[0].rate_limit.replaces[0].name: is empty: name the rule that is replaced",
        ),
        (
            "- key: a\n  value: b\n  share_threshold: true\n",
            "0.yaml: line 3: descriptors[0].share_threshold: only for a value that ends with *, such as files*",
        ),
    ] {
        assert_eq!(descriptors(text), expected);
    }
    assert_eq!(
        error(&["descriptors: []"]),
        "0.yaml: domain: is empty: name the domain that gateways ask about"
    );
    assert_eq!(
        error(&["domain: d", "domain: d"]),
        "1.yaml: domain: \"d\" is in another file too: remove one, or set MERGE_DOMAIN_CONFIG=true (sluice serve --merge-domains)"
    );
    for (text, place) in [
        ("- key: a\n  rate_limits: {}\n", "line 4"),
        ("- key: a\n  key: b\n", "line 4"),
        ("- key: [a]\n", "line 3"),
        ("- key: a\n  rate_limit: {unit: day, requests_per_unit: -1}\n", "line 4"),
        ("- key: a\n  rate_limit: {unit: day, requests_per_unit: 99999999999}\n", "line 4"),
        ("- key: \"a\n", "line"),
    ] {
        let error = descriptors(text);
        assert!(error.starts_with("0.yaml: ") && error.contains(place) && !error.contains('\n'), "{error}");
    }
}

#[test]
fn scalars_are_texts_and_empty_lists_may_be_left_out() {
    let yaml = "domain: 7\ndescriptors:\n- key: 404\n  value: true\n  rate_limit: {unit: DAY, requests_per_unit: 4}\n  descriptors:\n- key: x\n  value: 1.50\n  metadata: {a: [b]}\n";
    let config = DomainConfig::from_yaml(yaml).unwrap();
    assert_eq!(
        (&*config.domain, &*config.descriptors[0].key.text, &*config.descriptors[0].value),
        ("7", "404", "true")
    );
    assert_eq!(config.descriptors[1].value, "1.50");
    assert_eq!(
        compile(&[("a".into(), config)], &RULES).unwrap().rules,
        "7.404_true: unit=DAY requests_per_unit=4, shadow_mode: false, quota_mode: false\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_broken_configuration_leaves_the_last_good_one_and_its_counters() {
    let good = "{domain: d, descriptors: [{key: k, rate_limit: {unit: day, requests_per_unit: 2}}]}";
    let running = start(good).await;
    let mut caller = Caller::connect(&running).await;
    assert_eq!(caller.words("d", &[of(&[("k", "v")])]).await, "ok: ok 1/2");
    let broken = configs(&[good, "{domain: e, descriptors: [{key: k, rate_limit: {unit: eon}}]}"]);
    let error = running.loader.load(&broken).unwrap_err();
    assert!(error.to_string().starts_with("1.yaml: line 1: descriptors[0].rate_limit.unit"), "{error}");
    assert_eq!(caller.words("d", &[of(&[("k", "v")])]).await, "ok: ok 0/2");
    assert_eq!(metric(&running, "sluice_ratelimit_config_loads_total")[r#"{outcome="rejected"}"#], "1");
    let edited =
        "{domain: d, descriptors: [{key: other}, {key: k, rate_limit: {unit: day, requests_per_unit: 5}}]}";
    running.loader.load(&configs(&[edited])).unwrap();
    assert_eq!(caller.words("d", &[of(&[("k", "v")])]).await, "ok: ok 2/5", "the counter is the same");
    running.loader.load(&[]).unwrap();
    assert_eq!(caller.words("d", &[of(&[("k", "v")])]).await, "ok: ok", "no domain is left");
}

#[tokio::test(flavor = "multi_thread")]
async fn domains_are_merged_where_that_is_asked_for() {
    let merges = CompileOptions { merges_domains: true, ..RULES };
    let files = [
        "{domain: d, descriptors: [{key: a, rate_limit: {unit: day, requests_per_unit: 2}}]}",
        "{domain: d, descriptors: [{key: b, rate_limit: {unit: day, requests_per_unit: 3}}]}",
    ];
    let running = start_with(|_| {}, merges, &files).await;
    let mut caller = Caller::connect(&running).await;
    assert_eq!(caller.words("d", &[of(&[("a", "v")]), of(&[("b", "v")])]).await, "ok: ok 1/2 ok 2/3");
}

#[tokio::test(flavor = "multi_thread")]
async fn one_variable_chooses_another_algorithm() {
    let rules = "{domain: d, descriptors: [{key: k, rate_limit: {unit: minute, requests_per_unit: 10}}]}";
    for (algorithm, after_half, after_all) in [
        (AlgorithmName::FixedWindow, 10, 10),
        (AlgorithmName::SlidingWindowCounter, 0, 5),
        (AlgorithmName::SlidingWindowLog, 0, 10),
        (AlgorithmName::TokenBucket, 5, 5),
    ] {
        let running = start_with(|_| {}, CompileOptions { algorithm, ..RULES }, &[rules]).await;
        let mut caller = Caller::connect(&running).await;
        let mut admitted = Vec::new();
        // Half a minute before the edge of a window, at the edge, and half a minute after it.
        for _ in 0..3 {
            let mut count = 0;
            for _ in 0..12 {
                count += u32::from(caller.words("d", &[of(&[("k", "v")])]).await.starts_with("ok"));
            }
            admitted.push(count);
            running.clock.advance_micros(30_000_000);
        }
        assert_eq!(admitted[0], 10, "{algorithm:?}");
        assert_eq!(admitted[1], after_half, "{algorithm:?}");
        assert_eq!(
            admitted[2],
            if algorithm == AlgorithmName::FixedWindow { 0 } else { after_all },
            "{algorithm:?}"
        );
    }
}
