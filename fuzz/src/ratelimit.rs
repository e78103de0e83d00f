//! Files of rules for envoyproxy/ratelimit.

use sluice_config::policy::OnStoreFailure;
use sluice_service::compat::compile::{AlgorithmName, CompileOptions, compile};
use sluice_service::compat::config::DomainConfig;

use crate::target::Target;

/// The check.
pub const TARGET: Target = Target {
    name: "ratelimit",
    check,
    seeds: &[
        "domain: shop\ndescriptors:\n- key: user\n  value: a*\n  rate_limit: {unit: minute, requests_per_unit: 3}\n",
        "domain: d\ndescriptors:\n- key: a\n  descriptors:\n  - key: b\n    value: x*y\n    share_threshold: true\n    rate_limit:\n      unit: DAY\n      requests_per_unit: 0\n      name: n\n    shadow_mode: true\n",
        "domain: d\ndescriptors:\n- key: a\n  rate_limit: {unlimited: true, name: x, replaces: [{name: y}]}\n  quota_mode: true\n  detailed_metric: true\n",
    ],
    words: &[
        "\n",
        "  ",
        "- ",
        ": ",
        "{",
        "}",
        "[",
        "]",
        "*",
        "**",
        "null",
        "domain: ",
        "descriptors:",
        "key: a",
        "value: \"\"",
        "rate_limit:",
        "unit: year",
        "unit: fortnight",
        "requests_per_unit: 4294967295",
        "requests_per_unit: -1",
        "unlimited: true",
        "replaces: [{name: a}]",
        "share_threshold: true",
        "value_to_metric: true",
        "metadata: {}",
        "&a",
        "*a",
        "%",
        "\u{e9}",
        "\0",
    ],
};

fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    let Ok(config) = DomainConfig::from_yaml(text) else { return };
    let mut limits = Vec::new();
    for algorithm in AlgorithmName::ALL {
        let options =
            CompileOptions { algorithm, on_store_failure: OnStoreFailure::Share, merges_domains: false };
        match compile(&[("file.yaml".to_owned(), config.clone())], &options) {
            Ok(compiled) => {
                assert!(compiled.policies.len() <= 1);
                limits.push(compiled.count);
            }
            Err(error) => assert!(error.to_string().starts_with("file.yaml: "), "{error}"),
        }
    }
    assert!(limits.windows(2).all(|pair| pair[0] == pair[1]), "an algorithm changes which rules there are");
}
