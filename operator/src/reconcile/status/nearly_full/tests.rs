use std::sync::Arc;
use std::time::Duration;

use serde_json::json;
use sluice_config::ADMIN_PORT;
use sluice_config::PolicyHash;
use sluice_config::policy::Mode;
use sluice_crds::{Installation, compile};
use tokio::time::Instant;

use super::*;
use crate::cluster::pods::pod::{Pod, PodFacts};
use crate::distribution::session::Confirmation;
use crate::object_key::PolicyKey;
use crate::pod_selector::PodSelector;
use crate::reconcile::facts::{CountedPod, Facts};

fn pod(name: &str, nearly_full: &[&str]) -> CountedPod {
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
        untrusted_proxy: None,
        nearly_full: nearly_full.iter().map(|&name| name.to_owned()).collect(),
        store: None,
        unreachable: Vec::new(),
    }
}

/// Returns the message of the condition Ready.
fn message(pods: Vec<CountedPod>) -> String {
    let limit = |name| {
        let key = json!({"parts": [{"header": {"name": "x-client"}}]});
        json!({"name": name, "key": key, "maxKeys": 20_000, "rates": [{"requests": 5, "per": "1m"}]})
    };
    let object = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitPolicy",
        "metadata": {"namespace": "shop", "name": "p"},
        "spec": {"limits": [limit("one"), limit("other")]},
    });
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
    let text = nearly_full(&Observed {
        service: None,
        key: &PolicyKey { namespace: "shop".into(), name: "p".into() },
        generation: 1,
        kept_by: &[],
        outcome: &outcome,
        facts: &Facts { pods, ..Facts::default() },
        leader_for: Duration::from_secs(3_600),
        previous: None,
    });
    text.unwrap_or_default()
}

#[tokio::test]
async fn limits_with_nearly_as_many_keys_as_allowed_are_named_with_what_to_do() {
    assert_eq!(message(vec![pod("a", &[]), pod("b", &[])]), "");
    let text = message(vec![pod("a", &["one"]), pod("b", &["one"])]);
    assert!(text.starts_with("1 limit has nearly as many keys as allowed: one (maxKeys 20000)."), "{text}");
    assert!(text.contains("Raise maxKeys, or use a key whose values clients cannot choose"), "{text}");
    let text = message(vec![pod("a", &["one"]), pod("b", &["other"])]);
    assert!(text.starts_with("2 limits have"), "{text}");
}

#[tokio::test]
async fn a_sidecar_can_put_no_other_text_into_the_message() {
    assert_eq!(message(vec![pod("a", &["Everything is fine"])]), "");
}
