use std::collections::BTreeSet;

use sluice_crds::policy::{PodSelection, TargetKind, TargetRef};

use super::namespace::{Targets, selector};
use super::*;
use crate::cluster::targets::target::Target;

fn quotas() -> Quotas {
    Quotas {
        max_policies_per_namespace: 3,
        max_limits_per_pod: 10,
        max_bytes_per_pod: 2_000,
        quota_contact: "the platform team".into(),
    }
}

fn usage(name: &str, app: &str, enforced: usize, shadow: usize) -> Usage {
    let pods = PodSelection::Labels([Expression::Equal("app".into(), app.into())].into_iter().collect());
    Usage { name: name.into(), pods, enforced, shadow, bytes: 100 }
}

/// Returns a namespace with these policies, in which `new` is created.
fn namespace(usages: &[Usage], new: &Usage) -> Namespace {
    let none = Targets::new();
    Namespace {
        policies: usages.iter().map(|usage| usage.name.clone()).collect(),
        usages: usages.iter().map(|usage| (usage.clone(), selector(&usage.pods, &none))).collect(),
        selector: selector(&new.pods, &none),
        pods: BTreeSet::new(),
    }
}

fn refusal(usages: &[Usage], new: &Usage) -> Option<String> {
    quotas().exceeded(new, false, Growth::ALL, &namespace(usages, new))
}

#[test]
fn policies_of_a_namespace_are_counted_when_one_is_created() {
    let three = ["a", "b", "c"].map(|name| usage(name, name, 1, 0));
    let expected = "the namespace has 3 policies, and the quota is 3";
    assert_eq!(refusal(&three, &usage("d", "d", 1, 0)).as_deref(), Some(expected));
    let edit = usage("c", "c", 2, 0);
    assert_eq!(quotas().exceeded(&edit, true, Growth::ALL, &namespace(&three, &edit)), None, "an edit");
}

#[test]
fn limits_of_a_pod_are_counted_over_all_of_its_policies() {
    let others = [usage("a", "x", 6, 9), usage("b", "y", 9, 0)];
    let refused = |new: Usage| refusal(&others, &new);
    assert_eq!(refused(usage("c", "x", 4, 1)), None);
    let expected = "pods with app=x would have 2 policies with 11 limits, and the quota is 10";
    assert_eq!(refused(usage("c", "x", 5, 0)).as_deref(), Some(expected));
    let expected =
        "pods with app=x would have 2 policies with 21 limits, those in Shadow included, and the quota is 20";
    assert_eq!(refused(usage("c", "x", 4, 2)).as_deref(), Some(expected));
    let large = Usage { bytes: 1_950, ..usage("c", "x", 1, 0) };
    let expected = "pods with app=x would have 2 policies of 2050 bytes, and the quota is 2000";
    assert_eq!(refused(large).as_deref(), Some(expected));
}

#[test]
fn pods_that_run_show_which_policies_meet() {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let tier = PodSelection::Labels([Expression::Equal("tier".into(), "web".into())].into_iter().collect());
    let new = Usage { pods: tier, ..usage("b", "", 5, 0) };
    let mut meeting = namespace(&[usage("a", "x", 8, 0)], &new);
    assert_eq!(quotas().exceeded(&new, false, Growth::ALL, &meeting), None, "no pod has both labels");
    meeting.pods.insert([label("app", "x"), label("tier", "web")].into());
    let expected = "pods with tier=web would have 2 policies with 13 limits, and the quota is 10";
    assert_eq!(quotas().exceeded(&new, false, Growth::ALL, &meeting).as_deref(), Some(expected));
}

#[test]
fn a_policy_for_a_workload_meets_those_that_select_its_pods() {
    let web = TargetRef { group: None, kind: TargetKind::Deployment, name: "web".into() };
    let new = Usage { pods: PodSelection::Targets(vec![web.clone()]), ..usage("b", "", 5, 0) };
    let others = [usage("a", "x", 8, 0)];
    assert_eq!(refusal(&others, &new), None, "the workload does not exist");
    let same = [Usage { pods: new.pods.clone(), ..usage("c", "", 6, 0) }];
    let expected = "pods of deployment/web would have 2 policies with 11 limits, and the quota is 10";
    assert_eq!(refusal(&same, &new).as_deref(), Some(expected), "whether or not the workload exists");
    let target = Target::service([("app".to_owned(), "x".to_owned())].into());
    let targets: Targets = [(web, target)].into();
    let meeting = Namespace { selector: selector(&new.pods, &targets), ..namespace(&others, &new) };
    let expected = "pods of deployment/web would have 2 policies with 13 limits, and the quota is 10";
    assert_eq!(quotas().exceeded(&new, false, Growth::ALL, &meeting).as_deref(), Some(expected));
}

#[test]
fn an_edit_is_refused_only_for_what_grows() {
    let old = usage("a", "x", 50, 0);
    let growth = |new: &Usage| Growth::new(Some(&old), new);
    assert!(!growth(&usage("a", "x", 49, 0)).is_any() && !growth(&old).is_any());
    assert!(!growth(&usage("a", "x", 40, 10)).is_any(), "to Shadow");
    assert!(growth(&usage("a", "x", 51, 0)).enforced && growth(&usage("a", "x", 50, 1)).all);
    assert_eq!(growth(&usage("a", "y", 1, 0)), Growth::ALL, "for other pods");
    let longer = Usage { bytes: 101, ..old.clone() };
    assert_eq!(growth(&longer), Growth { enforced: false, all: false, bytes: true });
    let full = namespace(&[], &longer);
    assert_eq!(quotas().exceeded(&longer, true, growth(&longer), &full), None, "a number has a digit more");
}
