use std::time::Duration;

use sluice_config::client_address::AddressHeader;
use sluice_config::message::{PolicyFindings, StoreFindings, StoreReport, UntrustedProxy};
use sluice_crds::conditions::reasons;
use sluice_crds::policy::EnforcedBy;

use super::fixtures::{LONG_AGO, observed, pod, published_before};
use super::*;
use crate::leadership::LEADER_GRACE;

const JUST_NOW: Duration = Duration::from_secs(1);

/// Returns the pods `a` and `b`, whose sidecars have applied the policy and use the store.
fn reported() -> Vec<CountedPod> {
    ["a", "b"].map(|name| CountedPod { store: Some(StoreReport::HEALTHY), ..pod(name) }).into()
}

fn failing(pod: CountedPod) -> CountedPod {
    let fault = sluice_store::StoreFault::Unreachable;
    CountedPod { store: Some(StoreReport::Failing { fault, cause: None }), ..pod }
}

fn counters_lost(pod: CountedPod) -> CountedPod {
    let found = StoreFindings { lost_counters: true, ..StoreFindings::default() };
    CountedPod { store: Some(StoreReport::Healthy(found)), ..pod }
}

fn behind_a_proxy(pod: CountedPod) -> CountedPod {
    let (peer, header) = ([192, 0, 2, 1].into(), AddressHeader::XForwardedFor);
    let untrusted_proxy = Some(UntrustedProxy { peer, header });
    CountedPod { findings: PolicyFindings { untrusted_proxy, ..PolicyFindings::NOTHING }, ..pod }
}

/// Returns a pod of the service that gateways have asked.
fn asked(pod: CountedPod) -> CountedPod {
    let findings = PolicyFindings { asked: true, ..PolicyFindings::NOTHING };
    CountedPod { is_service: true, findings, ..pod }
}

/// Returns a pod as a leader finds it that its sidecar has not reached yet.
fn connecting(pod: &CountedPod) -> CountedPod {
    CountedPod {
        confirmation: Confirmation::NotConnected,
        findings: PolicyFindings::NOTHING,
        store: None,
        ..pod.clone()
    }
}

/// Computes the status of a policy that whoever has pods enforces, by a leader of this age.
fn computed(
    pods: &[CountedPod],
    leader_for: Duration,
    previous: Option<&RateLimitPolicyStatus>,
) -> RateLimitPolicyStatus {
    let mut outcome = published_before(Duration::from_secs(60));
    let (service, pods): (Vec<_>, Vec<_>) = pods.iter().cloned().partition(|pod| pod.is_service);
    if let Outcome::Published { enforced_by, .. } = &mut outcome {
        *enforced_by = EnforcedBy { sidecar: !pods.is_empty(), service: !service.is_empty() };
    }
    let facts = Facts { pods, service, ..Facts::default() };
    status(&Observed { leader_for, previous, ..observed(&outcome, &facts) }, Timestamp::UNIX_EPOCH).0
}

fn reason<'a>(status: &'a RateLimitPolicyStatus, kind: &str) -> &'a str {
    status.conditions.iter().find(|condition| condition.type_ == kind).map_or("", |found| &found.reason)
}

#[tokio::test]
async fn a_new_leader_writes_nothing_while_the_sidecars_connect_that_have_reported_before() {
    let [a, b]: [CountedPod; 2] = reported().try_into().unwrap();
    let kinds = [
        vec![a.clone(), b.clone()],
        vec![a.clone(), failing(b.clone())],
        vec![failing(a.clone()), failing(b.clone())],
        vec![a.clone(), counters_lost(b.clone())],
        vec![a.clone(), behind_a_proxy(b.clone())],
        vec![a.clone(), b.clone(), asked(pod("s"))],
        vec![asked(a.clone()), asked(b.clone())],
    ];
    for pods in kinds {
        let before = computed(&pods, LONG_AGO, None);
        // Any part of them may have reported to it.
        for reported in 0..1 << pods.len() {
            let arrive = |(n, pod): (usize, &CountedPod)| {
                if reported & (1 << n) == 0 { connecting(pod) } else { pod.clone() }
            };
            let now: Vec<_> = pods.iter().enumerate().map(arrive).collect();
            assert_eq!(computed(&now, JUST_NOW, Some(&before)), before, "{reported:b}");
        }
        let gone: Vec<_> = pods.iter().map(connecting).collect();
        let late = computed(&gone, LEADER_GRACE, Some(&before));
        assert_eq!(reason(&late, types::STORE_HEALTHY), reasons::NO_REPORTS);
        assert!([reasons::NO_REPORTS, ""].contains(&reason(&late, types::CLIENT_ADDRESS)));
    }
}

#[tokio::test]
async fn a_new_leader_tells_bad_news_at_once() {
    let [a, b]: [CountedPod; 2] = reported().try_into().unwrap();
    let before = computed(&[a.clone(), b.clone()], LONG_AGO, None);
    let now = computed(&[behind_a_proxy(failing(a)), connecting(&b)], JUST_NOW, Some(&before));
    assert_eq!(reason(&now, types::STORE_HEALTHY), reasons::UNREACHABLE);
    assert_eq!(reason(&now, types::CLIENT_ADDRESS), reasons::UNTRUSTED_PROXY);
    assert_eq!(reason(&now, types::PROGRAMMED), reasons::PROGRAMMED);
}

#[tokio::test]
async fn a_status_that_a_new_leader_keeps_is_computed_again() {
    let [a, b]: [CountedPod; 2] = reported().try_into().unwrap();
    let outcome = published_before(Duration::from_secs(60));
    let check_again = |pods: Vec<CountedPod>, leader_for| {
        let facts = Facts { pods, ..Facts::default() };
        status(&Observed { leader_for, ..observed(&outcome, &facts) }, Timestamp::UNIX_EPOCH).1
    };
    let left = check_again(vec![a.clone(), connecting(&b)], JUST_NOW).unwrap();
    assert!(left <= LEADER_GRACE - JUST_NOW);
    assert_eq!(check_again(vec![a, b], JUST_NOW), None);
}
