use proptest::prelude::*;
use sluice_config::message::{PolicyFindings, VERSION};

use super::*;

/// Maximum number of limits of all policies together, in these tests.
const MAX_LIMITS: usize = 10;

/// A compiled policy in JSON with this number of limits.
fn json(name: &str, limits: usize) -> String {
    let limits: Vec<_> = (0..limits)
        .map(|n| {
            serde_json::json!({"name": format!("l{n}"), "mode": "Enforce", "onMissing": "Shared",
                "key": [{"header":{"name":"x-api-key"}}],
                "kind": {"rates": {"base": [{"requests": 7, "periodMillis": 60_000, "algorithm": {"fixedWindow": "Clock"}}]}}})
        })
        .collect();
    serde_json::json!({"namespace": "shop", "name": name, "mode": "Enforce", "onStoreFailure": "Allow",
        "consistency": "Strict", "ambiguousPaths": "Match", "limits": limits})
    .to_string()
}

fn published(json: &str) -> PublishedPolicy {
    PublishedPolicy { hash: PolicyHash::of(json), policy: RawValue::from_string(json.to_owned()).unwrap() }
}

fn changes(policies: &[(&str, &str)]) -> Policies {
    let policies = policies.iter().map(|&(uid, json)| (uid.to_owned(), published(json)));
    Policies {
        version: VERSION,
        full: false,
        policies: policies.collect(),
        removed: Vec::new(),
        keep: Vec::new(),
        fallback: Default::default(),
    }
}

fn removal(uid: &str) -> Policies {
    Policies { removed: vec![uid.to_owned()], ..changes(&[]) }
}

/// The fitting rule of these tests: a number of limits, and names that differ.
fn check_fit(policies: &[IdentifiedPolicy]) -> Result<(), Nack> {
    if policies.iter().map(|(_, policy)| policy.limits.len()).sum::<usize>() > MAX_LIMITS {
        return Err(Nack("too many limits".into()));
    }
    let Some(((_, last), others)) = policies.split_last() else { return Ok(()) };
    if others.iter().any(|(_, other)| other.name == last.name) {
        return Err(Nack("same name".into()));
    }
    Ok(())
}

/// Receives a message and activates the candidates that fit.
fn apply(policies: &mut PolicyVersions, message: Policies) {
    policies.receive(message, &Blobs::default());
    policies.activate(check_fit);
}

/// The active policies as `UID=LIMITS`, and the nacked ones as `UID: REASON`.
fn state(policies: &PolicyVersions) -> Vec<String> {
    let active = policies.active().into_iter().map(|(uid, policy)| format!("{uid}={}", policy.limits.len()));
    let nacked = policies.report().into_iter().filter_map(|(uid, report)| match report {
        PolicyReport::Nacked { reason, .. } => Some(format!("{uid}: {reason}")),
        PolicyReport::Applied { .. } => None,
    });
    active.chain(nacked).collect()
}

#[test]
fn a_policy_is_not_reported_before_it_was_tried() {
    let mut policies = PolicyVersions::default();
    policies.receive(changes(&[("a", &json("a", 1))]), &Blobs::default());
    assert!(policies.contains(&"a".to_owned()) && policies.report().is_empty());
    policies.activate(check_fit);
    assert_eq!(
        policies.report()["a"],
        PolicyReport::Applied { hash: PolicyHash::of(&json("a", 1)), findings: PolicyFindings::NOTHING }
    );
}

#[test]
fn a_new_policy_displaces_no_active_one_and_becomes_active_when_there_is_room() {
    let mut policies = PolicyVersions::default();
    apply(&mut policies, changes(&[("m", &json("m", 4)), ("z", &json("z", 6))]));
    apply(&mut policies, changes(&[("a", &json("a", 1))]));
    assert_eq!(state(&policies), ["m=4", "z=6", "a: too many limits"]);
    apply(&mut policies, removal("z"));
    assert_eq!(state(&policies), ["a=1", "m=4"]);
}

#[test]
fn edits_that_fit_only_together_are_activated_together() {
    let differ = |policies: &[IdentifiedPolicy]| match policies {
        [(_, a), (_, b)] if a.limits.len() == b.limits.len() => Err(Nack("equal".into())),
        _ => Ok(()),
    };
    let mut policies = PolicyVersions::default();
    for message in
        [[("a", &json("a", 1)), ("b", &json("b", 2))], [("a", &json("a", 2)), ("b", &json("b", 1))]]
    {
        policies.receive(changes(&message.map(|(uid, json)| (uid, json.as_str()))), &Blobs::default());
        policies.activate(differ);
    }
    assert_eq!(state(&policies), ["a=2", "b=1"]);
    policies.receive(changes(&[("b", &json("b", 2))]), &Blobs::default());
    policies.activate(differ);
    assert_eq!(state(&policies), ["a=2", "b=1", "b: equal"]);
}

#[test]
fn an_edit_that_does_not_fit_leaves_the_active_version() {
    let mut policies = PolicyVersions::default();
    apply(&mut policies, changes(&[("a", &json("a", 4)), ("b", &json("b", 6))]));
    apply(&mut policies, changes(&[("a", &json("a", 5))]));
    assert_eq!(state(&policies), ["a=4", "b=6", "a: too many limits"]);
    apply(&mut policies, changes(&[("b", &json("b", 5))]));
    assert_eq!(state(&policies), ["a=5", "b=5"], "the edit of b made room for the edit of a");
}

#[test]
fn an_edit_uses_the_room_that_a_later_edit_of_the_same_message_leaves() {
    let mut policies = PolicyVersions::default();
    apply(&mut policies, changes(&[("a", &json("a", 4)), ("b", &json("b", 6))]));
    apply(&mut policies, changes(&[("a", &json("a", 6)), ("b", &json("b", 4)), ("c", &json("c", 1))]));
    assert_eq!(state(&policies), ["a=6", "b=4", "c: too many limits"]);
}

#[test]
fn new_policies_are_tried_in_the_order_of_their_names() {
    let mut policies = PolicyVersions::default();
    apply(&mut policies, changes(&[("1", &json("z", 6)), ("2", &json("y", 6)), ("3", &json("y", 1))]));
    assert_eq!(state(&policies), ["2=6", "1: too many limits", "3: same name"]);
}

#[test]
fn an_invalid_version_leaves_the_active_one_until_the_next_edit() {
    let mut policies = PolicyVersions::default();
    let good = json("a", 1);
    apply(&mut policies, changes(&[("a", &good)]));
    let unknown = good.replace("fixedWindow", "crystalBall");
    apply(&mut policies, changes(&[("a", &unknown)]));
    let PolicyReport::Nacked { hash, reason } = &policies.report()["a"] else { panic!("applied") };
    assert!(*hash == PolicyHash::of(&unknown) && reason.contains("crystalBall"), "{reason}");
    let mut changed = changes(&[("a", &json("a", 2))]);
    changed.policies.get_mut("a").unwrap().policy = published(&json("a", 3)).policy;
    apply(&mut policies, changed);
    assert!(state(&policies)[1].contains("changed in transit"));
    assert_eq!(state(&policies)[0], "a=1");
    apply(&mut policies, changes(&[("a", &good)]));
    assert_eq!(state(&policies), ["a=1"]);
}

#[test]
fn a_full_map_removes_what_it_neither_contains_nor_keeps() {
    let mut policies = PolicyVersions::default();
    apply(&mut policies, changes(&[("a", &json("a", 1)), ("b", &json("b", 2)), ("c", &json("c", 3))]));
    let full = Policies {
        full: true,
        keep: vec!["b".to_owned(), "never-received".to_owned()],
        ..changes(&[("a", &json("a", 4))])
    };
    apply(&mut policies, full);
    assert_eq!(state(&policies), ["a=4", "b=2"]);
    assert!(!policies.contains(&"never-received".to_owned()));
}

#[test]
fn the_published_policies_lead_to_the_same_state() {
    let mut policies = PolicyVersions::default();
    apply(&mut policies, changes(&[("a", &json("a", 4)), ("b", &json("b", 6))]));
    apply(&mut policies, changes(&[("a", &json("a", 9))]));
    let mut again = PolicyVersions::default();
    apply(&mut again, Policies { policies: policies.published(), ..changes(&[]) });
    assert_eq!(state(&again), ["a=4", "b=6"]);
}

/// A change of one policy in a message.
#[derive(Debug, Clone)]
enum Change {
    Removed,
    Invalid,
    Limits(usize),
}

fn change() -> impl Strategy<Value = Change> {
    prop_oneof![
        1 => Just(Change::Removed),
        1 => Just(Change::Invalid),
        4 => (1usize..8).prop_map(Change::Limits),
    ]
}

/// Policies with the UIDs 4 and 0 have one name.
fn name(uid: usize) -> String {
    format!("n{}", uid % 4)
}

fn message(message: &[(usize, Change)]) -> Policies {
    let mut policies = changes(&[]);
    for (uid, change) in message {
        let valid = |limits| json(&name(*uid), limits);
        let json = match change {
            Change::Removed => {
                policies.removed.push(uid.to_string());
                continue;
            }
            Change::Invalid => valid(1).replace("fixedWindow", "x"),
            Change::Limits(limits) => valid(*limits),
        };
        policies.policies.insert(uid.to_string(), published(&json));
    }
    policies
}

proptest! {
    #[test]
    fn active_policies_fit_stay_and_leave_no_room_for_a_nacked_candidate(
        messages in proptest::collection::vec(proptest::collection::vec((0usize..5, change()), 0..5), 1..8),
    ) {
        let mut policies = PolicyVersions::default();
        for changes in &messages {
            policies.receive(message(changes), &Blobs::default());
            let before: BTreeMap<_, _> = policies
                .0
                .iter()
                .map(|(uid, versions)| {
                    let hash = |version: &Version| version.prepared.hash.clone();
                    let (active, candidate) = (&versions.active, &versions.candidate);
                    (uid.clone(), (active.as_ref().map(hash), candidate.as_ref().map(hash)))
                })
                .collect();
            policies.activate(check_fit);

            let active = policies.active();
            for n in 1..=active.len() {
                prop_assert!(check_fit(&active[..n]).is_ok(), "{:?}", state(&policies));
            }
            for (uid, (was_active, was_candidate)) in before {
                let versions = &policies.0[&uid];
                let is_active = versions.active.as_ref().map(|version| version.prepared.hash.clone());
                // An active version is replaced only by the candidate.
                prop_assert!(is_active == was_active || is_active == was_candidate);
                prop_assert!(is_active.is_some() || was_active.is_none());
                if let Some(candidate) = &versions.candidate {
                    let mut beside: Vec<_> =
                        active.iter().filter(|(other, _)| *other != uid).cloned().collect();
                    beside.push((uid.clone(), candidate.prepared.clone()));
                    prop_assert!(check_fit(&beside).is_err(), "{uid} fits: {:?}", state(&policies));
                    prop_assert!(versions.nacked.is_some());
                }
            }
        }
    }
}
