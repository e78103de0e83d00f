use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sluice_config::ADMIN_PORT;
use sluice_config::PolicyHash;
use sluice_config::message::UntrustedProxy;
use sluice_config::policy::Mode;
use sluice_crds::{Installation, compile};
use tokio::time::Instant;

use super::*;
use crate::cluster::pods::pod::{Pod, PodFacts};
use crate::object_key::PolicyKey;
use crate::pod_selector::PodSelector;
use crate::reconcile::facts::{CountedPod, Facts};

fn pod(name: &str, proxy: Option<&str>) -> CountedPod {
    let proxy = proxy
        .map(|peer| UntrustedProxy { peer: peer.parse().unwrap(), header: AddressHeader::XForwardedFor });
    CountedPod {
        is_service: false,
        asked: false,
        pod: Arc::new(Pod {
            uid: name.into(),
            namespace: "shop".into(),
            name: name.into(),
            labels: Default::default(),
            ends: None,
            created: None,
            owner: None,
            controller: None,
        }),
        facts: Arc::new(PodFacts {
            injected: true,
            host_network: false,
            captured: Ok(Vec::new()),
            warnings: Vec::new(),
            admin: ADMIN_PORT,
            has_ports_annotation: false,
            host_ports: Vec::new(),
        }),
        addresses: Arc::default(),
        confirmation: Confirmation::Applied,
        untrusted_proxy: proxy,
        nearly_full: Vec::new(),
        store: None,
        unreachable: Vec::new(),
    }
}

/// Returns status, reason and message of the condition.
fn condition(
    key: &str,
    trusted: &[&str],
    pods: Vec<CountedPod>,
) -> Option<(&'static str, &'static str, String)> {
    let object = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitPolicy",
        "metadata": {"namespace": "shop", "name": "p"},
        "spec": {
            "clientAddress": {"trustedProxies": trusted},
            "limits": [{"name": "l", "key": {"parts": [{key: {"name": "x"}}]}, "rates": [{"requests": 5, "per": "1m"}]}],
        },
    });
    let mut object = object;
    if key == "clientIP" {
        object["spec"]["limits"][0]["key"]["parts"][0] = json!({"clientIP": {}});
    }
    let compiled = compile(&object, &Installation::default()).unwrap();
    let outcome = Outcome::Published {
        enforced_by: sluice_crds::policy::EnforcedBy::SIDECAR,
        hash: PolicyHash::of(&compiled.policy.to_json()),
        policy: Box::new(compiled.policy),
        selected: PodSelector::all().into(),
        published_at: Instant::now(),
        installation: Mode::Enforce,
        unusable: Vec::new(),
    };
    let finding = client_address(&Observed {
        service: None,
        key: &PolicyKey { namespace: "shop".into(), name: "p".into() },
        generation: 1,
        kept_by: &[],
        outcome: &outcome,
        facts: &Facts { pods, ..Facts::default() },
        leader_for: Duration::from_secs(3_600),
        previous: None,
    })?;
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
