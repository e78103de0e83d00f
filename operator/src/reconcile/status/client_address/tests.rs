use serde_json::json;
use sluice_config::message::{PolicyFindings, UntrustedProxy};

use super::*;
use crate::reconcile::facts::{CountedPod, Facts};
use crate::reconcile::status::fixtures::{observed, pod as plain, published};

fn pod(name: &str, proxy: Option<&str>) -> CountedPod {
    let proxy = proxy
        .map(|peer| UntrustedProxy { peer: peer.parse().unwrap(), header: AddressHeader::XForwardedFor });
    let findings = PolicyFindings { untrusted_proxy: proxy, ..PolicyFindings::NOTHING };
    CountedPod { findings, ..plain(name) }
}

/// Returns status, reason and message of the condition.
fn condition(
    key: &str,
    trusted: &[&str],
    pods: Vec<CountedPod>,
) -> Option<(&'static str, &'static str, String)> {
    let mut spec = json!({
        "clientAddress": {"trustedProxies": trusted},
        "limits": [{"name": "l", "key": {"parts": [{key: {"name": "x"}}]}, "rates": [{"requests": 5, "per": "1m"}]}],
    });
    if key == "clientIP" {
        spec["limits"][0]["key"]["parts"][0] = json!({"clientIP": {}});
    }
    let finding = client_address(&observed(&published(&spec), &Facts { pods, ..Facts::default() }))?;
    Some((finding.status, finding.reason, finding.message))
}

#[test]
fn only_limits_by_address_have_the_condition() {
    assert_eq!(condition("header", &[], vec![pod("a", Some("10.0.0.1"))]), None);
    let known = "Requests arrive from clients or through trusted proxies.".to_owned();
    assert_eq!(condition("clientIP", &[], vec![pod("a", None)]), Some(("True", "Known", known)));
    let (status, reason, _) = condition("clientIP", &[], vec![]).unwrap();
    assert_eq!((status, reason), ("Unknown", "NoReports"));
}

#[test]
fn addresses_that_cannot_be_read_are_told() {
    let findings = PolicyFindings { unreadable_addresses: true, ..PolicyFindings::NOTHING };
    let pods = vec![CountedPod { findings, ..plain("a") }, pod("b", None)];
    let (status, reason, message) = condition("clientIP", &["10.0.0.0/8"], pods).unwrap();
    assert_eq!((status, reason), ("False", "UnreadableAddress"));
    assert_eq!(
        message,
        "1 of 2 pods receives requests for which a trusted proxy reports something else than an address, such as `unknown`, so limits by \
         clientIP count them for that proxy. Let the proxy append the address of its peer. sluice_unreadable_addresses_total counts them."
    );
}

#[test]
fn an_untrusted_proxy_is_named_with_the_command_that_trusts_it() {
    let pods = vec![
        pod("a", Some("10.0.0.2")),
        pod("b", None),
        pod("c", Some("10.0.0.1")),
        pod("d", Some("10.0.0.2")),
    ];
    let (status, reason, message) = condition("clientIP", &["192.0.2.0/28"], pods).unwrap();
    assert_eq!((status, reason), ("False", "UntrustedProxy"));
    assert_eq!(
        message,
        "3 of 4 pods receive most requests with the header X-Forwarded-For from 10.0.0.1; 10.0.0.2, which the policy \
         does not trust, so limits by clientIP count all clients behind such a peer as one, and clientCIDRs are compared with that peer. If these are your \
         proxies, trust their networks: kubectl -n shop patch ratelimitpolicies.sluice.dev p --type merge -p \
         '{\"spec\":{\"clientAddress\":{\"header\":\"XForwardedFor\",\"trustedProxies\":[\"192.0.2.0/28\",\
         \"10.0.0.1/32\",\"10.0.0.2/32\"]}}}'"
    );
}
