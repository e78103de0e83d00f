use std::collections::BTreeSet;

use sluice_crds::policy::{PodSelection, TargetKind, TargetRef};

use super::{ReadTargets, selector, *};
use crate::cluster::targets::Target;

fn quotas() -> Quotas {
    Quotas {
        max_policies_per_namespace: 3,
        max_limits_per_pod: 10,
        max_bytes_per_pod: 2_000,
        quota_contact: "the platform team".into(),
    }
}

/// Returns the usage of a policy with limits for some requests.
fn usage(name: &str, app: &str, limits: usize) -> Usage {
    let pods = PodSelection::Labels([Expression::Equal("app".into(), app.into())].into_iter().collect());
    Usage {
        name: name.into(),
        pods,
        by_service: false,
        limits,
        enforced_for_all: 0,
        shadow_for_all: 0,
        bytes: 100,
    }
}

/// Returns a namespace with these policies, in which `new` is created.
fn namespace(usages: &[Usage], new: &Usage) -> Namespace {
    let none = ReadTargets::new();
    Namespace {
        policies: usages.iter().map(|usage| usage.name.clone()).collect(),
        usages: usages.iter().map(|usage| (usage.clone(), selector(&usage.pods, &none))).collect(),
        selector: selector(&new.pods, &none),
        pods: BTreeSet::new(),
    }
}

fn refusal(usages: &[Usage], new: &Usage) -> Option<String> {
    quotas().exceeded(new, false, [true; 4], &namespace(usages, new))
}

#[test]
fn policies_of_a_namespace_are_counted_when_one_is_created() {
    let three = ["a", "b", "c"].map(|name| usage(name, name, 1));
    let expected = "the namespace has 3 policies, and the quota is 3";
    assert_eq!(refusal(&three, &usage("d", "d", 1)).as_deref(), Some(expected));
    let edit = usage("c", "c", 2);
    assert_eq!(quotas().exceeded(&edit, true, [true; 4], &namespace(&three, &edit)), None, "an edit");
}

#[test]
fn limits_of_a_pod_are_counted_over_all_of_its_policies() {
    let others = [usage("a", "x", 6), usage("b", "y", 9)];
    let refused = |new: Usage| refusal(&others, &new);
    assert_eq!(refused(usage("c", "x", 4)), None);
    let expected = "pods with app=x would have 2 policies with 11 limits, and the quota is 10";
    assert_eq!(refused(usage("c", "x", 5)).as_deref(), Some(expected));
    let large = Usage { bytes: 1_950, ..usage("c", "x", 1) };
    let expected = "pods with app=x would have 2 policies of 2050 bytes, and the quota is 2000";
    assert_eq!(refused(large).as_deref(), Some(expected));
}

#[test]
fn limits_for_every_request_are_as_many_as_a_request_can_meet() {
    let for_all = |name, enforced, shadow| Usage {
        enforced_for_all: enforced,
        shadow_for_all: shadow,
        ..usage(name, "x", 1)
    };
    let others = [for_all("a", 20, 20)];
    assert_eq!(refusal(&others, &for_all("b", 12, 12)), None);
    let expected =
        "pods with app=x would have 2 policies with 33 limits for every request, and a request can meet 32";
    assert_eq!(refusal(&others, &for_all("b", 13, 0)).as_deref(), Some(expected));
    let expected = "pods with app=x would have 2 policies with 65 limits for every request, those in Shadow included, and a \
                    request can meet 64";
    assert_eq!(refusal(&others, &for_all("b", 0, 25)).as_deref(), Some(expected));
}

#[test]
fn pods_that_run_show_which_policies_meet() {
    let label = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let tier = PodSelection::Labels([Expression::Equal("tier".into(), "web".into())].into_iter().collect());
    let new = Usage { pods: tier, ..usage("b", "", 5) };
    let mut meeting = namespace(&[usage("a", "x", 8)], &new);
    assert_eq!(quotas().exceeded(&new, false, [true; 4], &meeting), None, "no pod has both labels");
    meeting.pods.insert([label("app", "x"), label("tier", "web")].into());
    let expected = "pods with tier=web would have 2 policies with 13 limits, and the quota is 10";
    assert_eq!(quotas().exceeded(&new, false, [true; 4], &meeting).as_deref(), Some(expected));
}

#[test]
fn a_policy_for_a_workload_meets_those_that_select_its_pods() {
    let web = TargetRef { group: None, kind: TargetKind::Deployment, name: "web".into() };
    let new = Usage { pods: PodSelection::Targets(vec![web.clone()]), ..usage("b", "", 5) };
    let others = [usage("a", "x", 8)];
    assert_eq!(refusal(&others, &new), None, "the workload does not exist");
    let same = [Usage { pods: new.pods.clone(), ..usage("c", "", 6) }];
    let expected = "pods of deployment/web would have 2 policies with 11 limits, and the quota is 10";
    assert_eq!(refusal(&same, &new).as_deref(), Some(expected), "whether or not the workload exists");
    let target = Target::service([("app".to_owned(), "x".to_owned())].into());
    let targets: ReadTargets = [(web, target)].into();
    let meeting = Namespace { selector: selector(&new.pods, &targets), ..namespace(&others, &new) };
    let expected = "pods of deployment/web would have 2 policies with 13 limits, and the quota is 10";
    assert_eq!(quotas().exceeded(&new, false, [true; 4], &meeting).as_deref(), Some(expected));
}

#[test]
fn an_edit_is_refused_only_for_what_grows() {
    let for_all = |enforced, shadow| Usage {
        enforced_for_all: enforced,
        shadow_for_all: shadow,
        ..usage("a", "x", 50)
    };
    let old = for_all(20, 20);
    let growth = |new: &Usage| growth(Some(&old), new);
    let of = |limits, enforced, for_all, bytes| [limits, enforced, for_all, bytes];
    let none = [false; 4];
    assert_eq!((growth(&Usage { limits: 49, ..old.clone() }), growth(&old)), (none, none));
    assert_eq!(growth(&for_all(10, 30)), none, "to Shadow");
    assert_eq!(growth(&for_all(21, 19)), of(false, true, false, false));
    assert_eq!(growth(&for_all(20, 21)), of(false, false, true, false));
    assert_eq!(growth(&Usage { limits: 51, ..old.clone() }), of(true, false, false, false));
    assert_eq!(growth(&usage("a", "y", 1)), [true; 4], "for other pods");
    let longer = Usage { bytes: 101, ..old.clone() };
    assert_eq!(growth(&longer), of(false, false, false, true));
    let full = namespace(&[], &longer);
    assert_eq!(quotas().exceeded(&longer, true, growth(&longer), &full), None, "a number has a digit more");
}
