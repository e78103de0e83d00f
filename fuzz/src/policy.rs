//! Compiled policies, as a sidecar receives them, and policy files.

use std::net::IpAddr;

use http::{HeaderMap, Method, Uri};
use sluice_config::{CompiledPolicy, KeySecret, PreparedPolicy, RequestAttributes};
use sluice_crds::Installation;
use sluice_crds::manifest::load;

use crate::target::Target;

/// The check.
pub const TARGET: Target = Target {
    name: "policy",
    check,
    seeds: &[
        include_str!("../../examples/login.yaml"),
        include_str!("../../examples/dual-rule.yaml"),
        include_str!("../../examples/elastic.yaml"),
        include_str!("../../examples/concurrency-adaptive.yaml"),
        include_str!("../../examples/login-protection.yaml"),
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
        "null",
        "true",
        "0",
        "-1",
        "1.5",
        "9223372036854775808",
        "1e400",
        "\"\"",
        "rates:",
        "requests: 0",
        "per: 1ms",
        "per: 8784h",
        "&a",
        "*a",
        "!!binary",
        "---",
        "|",
        ">",
        "\u{e9}",
        "\0",
        "matches:",
        "key:",
        "algorithm: {gcra: {}}",
        "{\"limits\":[",
        "\t",
    ],
};

fn check(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else { return };
    // Policies of files, some of them compiled; and the text itself as a compiled policy.
    for loaded in load(text, &Installation::default()).unwrap_or_default().policies {
        let json = loaded.compiled.to_json();
        assert_eq!(serde_json::from_str::<CompiledPolicy>(&json).ok(), Some(loaded.compiled), "{json}");
        prepare(&json);
    }
    prepare(text);
}

/// Prepares a compiled policy as a sidecar does, and applies it to a request.
pub(crate) fn prepare(json: &str) {
    let Ok(policy) = PreparedPolicy::from_json(json) else { return };
    let (method, uri, headers) = (Method::POST, Uri::from_static("/login?a=b"), HeaderMap::new());
    let peer: IpAddr = [192, 0, 2, 1].into();
    let request = RequestAttributes::new(&method, &uri, &headers, peer);
    let limits = policy
        .identify(0..policy.limits.len(), &request, &request.path_readings(), &KeySecret::new([0; 16]))
        .count();
    assert!(limits <= policy.limits.len());
}
