use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sluice_config::ADMIN_PORT;
use sluice_config::policy::{Consistency, DEFAULT_STORE, Mode, OnStoreFailure};
use sluice_config::{CompiledPolicy, PolicyHash};
use sluice_crds::RateLimitPolicyStatus;
use tokio::time::Instant;

use super::*;
use crate::cluster::pods::pod::{Pod, PodFacts};
use crate::injection::capture::CaptureError;
use crate::injection::skip::Skip;
use crate::object_key::PolicyKey;
use crate::pod_selector::PodSelector;
use crate::reconcile::facts::Facts;

const LONG_AGO: Duration = Duration::from_secs(3_600);

fn pod(name: &str, injected: bool, confirmation: Confirmation) -> CountedPod {
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
            injected,
            host_network: false,
            captured: Ok(Vec::new()),
            warnings: Vec::new(),
            admin: ADMIN_PORT,
            has_ports_annotation: false,
            host_ports: Vec::new(),
        }),
        addresses: Arc::default(),
        confirmation,
        untrusted_proxy: None,
        nearly_full: Vec::new(),
        store: None,
        unreachable: Vec::new(),
    }
}

fn owned_by(owner: &str, pod: &CountedPod) -> CountedPod {
    CountedPod { pod: Arc::new(Pod { owner: Some(owner.into()), ..(*pod.pod).clone() }), ..pod.clone() }
}

/// Computes the condition of a policy that was published a minute ago.
fn compute(
    pods: Vec<CountedPod>,
    leader_for: Duration,
    previous: Option<&RateLimitPolicyStatus>,
) -> Programmed {
    let outcome = Outcome::Published {
        enforced_by: sluice_crds::policy::EnforcedBy::SIDECAR,
        policy: Box::new(CompiledPolicy {
            namespace: "shop".into(),
            name: "p".into(),
            mode: Mode::Enforce,
            on_store_failure: OnStoreFailure::Allow,
            consistency: Consistency::Strict,
            store: DEFAULT_STORE.into(),
            ambiguous_paths: Default::default(),
            client_address: None,
            jwt: Vec::new(),
            status_headers: None,
            limits: Vec::new(),
            hints: Default::default(),
        }),
        hash: PolicyHash::of("p"),
        selected: PodSelector::all().into(),
        published_at: Instant::now() - Duration::from_secs(60),
        installation: Mode::Enforce,
        unusable: Vec::new(),
    };
    programmed(&Observed {
        service: None,
        key: &PolicyKey { namespace: "shop".into(), name: "p".into() },
        generation: 2,
        kept_by: &[],
        outcome: &outcome,
        facts: &Facts { pods, ..Facts::default() },
        leader_for,
        previous,
    })
}

fn previous(status: &str, generation: i64) -> RateLimitPolicyStatus {
    let condition = Condition {
        type_: types::PROGRAMMED.into(),
        status: status.into(),
        reason: "Before".into(),
        message: "the message before".into(),
        observed_generation: Some(generation),
        last_transition_time: Time(jiff::Timestamp::UNIX_EPOCH),
    };
    RateLimitPolicyStatus { conditions: vec![condition], ..RateLimitPolicyStatus::default() }
}

#[tokio::test]
async fn it_is_true_when_every_pod_has_applied_this_edit() {
    let programmed = compute(vec![pod("a", true, Confirmation::Applied)], LONG_AGO, None);
    assert_eq!((programmed.finding.status, programmed.finding.reason), ("True", reasons::PROGRAMMED));
    assert_eq!(programmed.finding.message, "1 of 1 pod has applied this policy.");
    assert_eq!(programmed.check_again_after, None);
}

#[tokio::test]
async fn missing_confirmations_are_named_with_the_pods() {
    let pods = vec![
        pod("a", true, Confirmation::NotConnected),
        pod("b", true, Confirmation::Unconfirmed),
        pod("c", true, Confirmation::Applied),
    ];
    let finding = compute(pods, LONG_AGO, None).finding;
    assert_eq!((finding.status, finding.reason), ("False", reasons::PODS_UNCONFIRMED));
    assert_eq!(
        finding.message,
        "2 of 3 pods have not confirmed this policy: a (its sidecar is not connected to the operator); b. \
         Check the logs of the container sluice-sidecar in these pods."
    );
    let pods = vec![
        pod("a", true, Confirmation::Nacked("too new".into())),
        pod("b", false, Confirmation::NotConnected),
    ];
    let finding = compute(pods, LONG_AGO, None).finding;
    assert_eq!(finding.reason, reasons::REFUSED, "a nack comes before a missing sidecar");
    assert!(finding.message.starts_with("1 of 2 pods has rejected this policy"), "{}", finding.message);
}

#[tokio::test]
async fn pods_without_a_sidecar_come_with_the_commands_that_add_it() {
    let bare = pod("a", false, Confirmation::NotConnected);
    let message = |pods| compute(pods, LONG_AGO, None).finding.message;
    let label = "run `kubectl label --overwrite namespace shop sluice.dev/injection=enabled`, then ";
    assert_eq!(
        message(vec![bare.clone()]),
        format!("1 of 1 pod has no sidecar. To add it, {label}recreate pod/a.")
    );
    let owned = ["deployment/web", "deployment/web", "job/once"].map(|owner| owned_by(owner, &bare));
    assert_eq!(
        message(owned.to_vec()),
        format!(
            "3 of 3 pods have no sidecar. To add it, {label}recreate the pods of job/once; \
             run `kubectl -n shop rollout restart deployment/web`."
        )
    );
    let captured = Err(Skip::Capture(CaptureError::NoNamedPort));
    let uncapturable = CountedPod { facts: Arc::new(PodFacts { captured, ..(*bare.facts).clone() }), ..bare };
    let message = message(vec![uncapturable]);
    assert!(
        message.starts_with("Pod a cannot get a sidecar: no container has a named TCP port"),
        "{message}"
    );
}

#[tokio::test]
async fn a_new_leader_keeps_a_true_condition_while_sidecars_connect() {
    let pods = || vec![pod("a", true, Confirmation::NotConnected)];
    let just_now = Duration::from_secs(20);
    let kept = compute(pods(), just_now, Some(&previous("True", 2)));
    assert!(kept.is_kept && kept.finding.message == "the message before");
    assert_eq!((kept.finding.status, kept.check_again_after), ("True", Some(LEADER_GRACE - just_now)));

    let older = compute(pods(), just_now, Some(&previous("True", 1)));
    assert_eq!((older.finding.status, older.finding.reason), ("Unknown", reasons::AWAITING_REPORTS));
    for (leader_for, previous) in
        [(just_now, Some(&previous("False", 2))), (just_now, None), (LONG_AGO, Some(&previous("True", 2)))]
    {
        let decided = compute(pods(), leader_for, previous);
        assert!(!decided.is_kept);
        assert_eq!(decided.finding.reason, reasons::PODS_UNCONFIRMED);
    }
}
