//! Values that the tests of this folder share.

use std::sync::{Arc, LazyLock};
use std::time::Duration;

use serde_json::{Value, json};
use sluice_config::message::PolicyFindings;
use sluice_config::policy::Mode;
use sluice_config::{ADMIN_PORT, PolicyHash};
use sluice_crds::policy::EnforcedBy;
use sluice_crds::{Installation, compile};
use tokio::time::Instant;

use crate::cluster::pods::pod::{Pod, PodFacts};
use crate::distribution::session::Confirmation;
use crate::names::{PodSelector, PolicyKey};
use crate::reconcile::facts::{CountedPod, Facts, Observed, Outcome};

pub(super) const LONG_AGO: Duration = Duration::from_secs(3_600);

static KEY: LazyLock<PolicyKey> = LazyLock::new(|| PolicyKey::new("shop", "p"));

/// Returns a pod whose sidecar has applied the policy.
pub(super) fn pod(name: &str) -> CountedPod {
    CountedPod {
        is_service: false,
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
            taken_names: Vec::new(),
            captured: Ok(Vec::new()),
            warnings: Vec::new(),
            admin: ADMIN_PORT,
            has_ports_annotation: false,
            host_ports: Vec::new(),
        }),
        addresses: Arc::default(),
        confirmation: Confirmation::Applied,
        findings: PolicyFindings::NOTHING,
        store: None,
        unreachable: Vec::new(),
    }
}

/// Returns the result of publishing a policy with this spec now.
pub(super) fn published(spec: &Value) -> Outcome {
    let object = json!({
        "apiVersion": "sluice.dev/v1alpha1", "kind": "RateLimitPolicy",
        "metadata": {"namespace": "shop", "name": "p"},
        "spec": spec,
    });
    let compiled = compile(&object, &Installation::default()).unwrap();
    Outcome::Published {
        enforced_by: EnforcedBy::SIDECAR,
        hash: PolicyHash::of(&compiled.policy.to_json()),
        policy: Box::new(compiled.policy),
        selected: PodSelector::all().into(),
        published_at: Instant::now(),
        is_first: true,
        installation: Mode::Enforce,
        unusable: Vec::new(),
    }
}

/// Returns the result of publishing some policy before this time.
pub(super) fn published_before(ago: Duration) -> Outcome {
    let limit =
        json!({"name": "l", "key": {"parts": [{"clientIP": {}}]}, "rates": [{"requests": 5, "per": "1m"}]});
    let mut outcome = published(&json!({"limits": [limit]}));
    if let Outcome::Published { published_at, .. } = &mut outcome {
        *published_at = Instant::now() - ago;
    }
    outcome
}

/// Returns what a status is computed from that has no previous one, under a leader of long standing.
pub(super) fn observed<'a>(outcome: &'a Outcome, facts: &'a Facts) -> Observed<'a> {
    Observed {
        service: None,
        key: &KEY,
        generation: 1,
        age: LONG_AGO,
        kept_by: &[],
        outcome,
        facts,
        leader_for: LONG_AGO,
        previous: None,
    }
}
