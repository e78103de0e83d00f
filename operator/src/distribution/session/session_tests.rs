//! Tests.

use super::*;

fn of(policies: usize) -> Reports {
    let report = || PolicyReport::Nacked { hash: sluice_config::PolicyHash::of("p"), reason: "r".into() };
    let policies = (0..policies).map(|policy| (policy.to_string(), report())).collect();
    Reports { policies, stores: BTreeMap::new() }
}

#[test]
fn equal_reports_of_a_namespace_are_kept_once_and_no_more_than_a_few_are_looked_through() {
    let mut shared = SharedReports::default();
    let first = shared.share("n", of(1));
    assert!(Arc::ptr_eq(&first, &shared.share("n", of(1))));
    assert!(!Arc::ptr_eq(&first, &shared.share("other", of(1))));
    let different: Vec<_> = (2..=MAX_DIFFERENT).map(|policies| shared.share("n", of(policies))).collect();
    assert!(Arc::ptr_eq(&first, &shared.share("n", of(1))));
    let one_more = shared.share("n", of(100));
    assert!(!Arc::ptr_eq(&first, &shared.share("n", of(1))), "the oldest one was forgotten");
    assert_eq!(shared.0["n"].len(), MAX_DIFFERENT);
    drop((first, different));
    let _ = shared.share("n", of(101));
    assert!(shared.0["n"].len() <= 3, "those of nobody are not kept");
    assert!(Arc::ptr_eq(&one_more, &shared.share("n", of(100))));
    shared.forget("n");
    assert_eq!(shared.0.len(), 1);
}
