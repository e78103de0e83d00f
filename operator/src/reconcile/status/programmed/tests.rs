use std::sync::Arc;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use sluice_crds::RateLimitPolicyStatus;

use super::*;
use crate::cluster::pods::pod::PodFacts;
use crate::injection::capture::CaptureError;
use crate::injection::decide::Skip;
use crate::reconcile::facts::Facts;
use crate::reconcile::status::fixtures::{LONG_AGO, observed, pod as applied, published_before};

fn pod(name: &str, injected: bool, confirmation: Confirmation) -> CountedPod {
    let pod = applied(name);
    CountedPod { facts: Arc::new(PodFacts { injected, ..(*pod.facts).clone() }), confirmation, ..pod }
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
    compute_at(pods, Duration::from_secs(60), leader_for, LONG_AGO, previous)
}

/// Computes the condition of a policy that was published and created before these times.
fn compute_at(
    pods: Vec<CountedPod>,
    published_for: Duration,
    leader_for: Duration,
    age: Duration,
    previous: Option<&RateLimitPolicyStatus>,
) -> Programmed {
    let outcome = published_before(published_for);
    let facts = Facts { pods, ..Facts::default() };
    programmed(&Observed { generation: 2, age, leader_for, previous, ..observed(&outcome, &facts) })
}

fn previous(status: &str, generation: i64) -> RateLimitPolicyStatus {
    found(status, "Before", generation)
}

fn found(status: &str, reason: &str, generation: i64) -> RateLimitPolicyStatus {
    let condition = Condition {
        type_: types::PROGRAMMED.into(),
        status: status.into(),
        reason: reason.into(),
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
    let skipped = |skip| {
        let facts = PodFacts { captured: Err(skip), ..(*bare.facts).clone() };
        CountedPod { facts: Arc::new(facts), ..bare.clone() }
    };
    let removed = compute(vec![skipped(Skip::Removed)], Duration::from_secs(60), None);
    assert_eq!(removed.finding.reason, "SidecarRemoved");
    let message = message(vec![skipped(Skip::Capture(CaptureError::NoNamedPort))]);
    assert!(
        message.starts_with("Pod a cannot get a sidecar: no container has a named TCP port"),
        "{message}"
    );
}

#[tokio::test]
async fn a_new_leader_keeps_a_true_condition_while_sidecars_connect() {
    let pods = || vec![pod("a", true, Confirmation::NotConnected)];
    let just_now = Duration::from_secs(20);
    for connecting in [Confirmation::NotConnected, Confirmation::AwaitsReport] {
        let kept = compute(vec![pod("a", true, connecting)], just_now, Some(&previous("True", 2)));
        assert!(kept.is_kept && kept.finding.message == "the message before");
        assert_eq!((kept.finding.status, kept.check_again_after), ("True", Some(LEADER_GRACE - just_now)));
    }
    let other_edit = pod("a", true, Confirmation::Unconfirmed);
    let decided = compute(vec![other_edit], just_now, Some(&previous("True", 2)));
    assert_eq!(decided.finding.reason, reasons::PODS_UNCONFIRMED, "it enforces another edit");

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

#[tokio::test(start_paused = true)]
async fn an_edit_is_pending_once_and_not_again_for_the_next_leader() {
    let (at_start, now) = (Duration::from_secs(2), Duration::from_secs(1));
    let reason = |pods, leader_for, age, previous: Option<&RateLimitPolicyStatus>| {
        compute_at(pods, now, leader_for, age, previous).finding.reason
    };
    let none = Vec::new;
    assert_eq!(reason(none(), at_start, now, None), reasons::PENDING, "it was created just now");
    assert_eq!(reason(none(), at_start, LONG_AGO, None), reasons::NO_PODS, "nobody has ever looked");
    for (found_before, expected) in [
        (found("False", reasons::PENDING, 2), reasons::PENDING),
        (found("False", reasons::NO_PODS, 2), reasons::NO_PODS),
        (found("False", reasons::NO_PODS, 1), reasons::PENDING),
    ] {
        assert_eq!(reason(none(), at_start, LONG_AGO, Some(&found_before)), expected, "{found_before:?}");
    }
    // The same leader may have found pods, and others may have come since.
    let programmed = found("True", reasons::PROGRAMMED, 2);
    assert_eq!(reason(none(), LONG_AGO, LONG_AGO, Some(&programmed)), reasons::PENDING);

    let connecting = || vec![pod("a", true, Confirmation::NotConnected)];
    let unconfirmed = found("False", reasons::PODS_UNCONFIRMED, 2);
    assert_eq!(reason(connecting(), at_start, LONG_AGO, Some(&unconfirmed)), reasons::PODS_UNCONFIRMED);
    assert_eq!(reason(connecting(), at_start, LONG_AGO, None), reasons::PENDING);
}

#[tokio::test]
async fn a_new_leader_keeps_a_refusal_while_sidecars_connect_and_hears_a_new_one_at_once() {
    let just_now = Duration::from_secs(20);
    let connecting = pod("a", true, Confirmation::NotConnected);
    let refused = found("False", reasons::REFUSED, 2);
    let kept = compute(vec![connecting.clone()], just_now, Some(&refused));
    assert!(kept.is_kept && kept.finding.message == "the message before");
    assert_eq!((kept.finding.status, kept.finding.reason), ("False", reasons::REFUSED));

    let nacking = pod("b", true, Confirmation::Nacked("too new".into()));
    let refusing = compute(vec![connecting, nacking], just_now, Some(&previous("True", 2)));
    assert_eq!((refusing.finding.status, refusing.finding.reason), ("False", reasons::REFUSED));
}
