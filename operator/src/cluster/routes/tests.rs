use k8s_openapi::api::core::v1::ConfigMap;

use super::*;

#[derive(Debug, PartialEq)]
struct Number(u8);

impl Trimmed for Number {
    type Object = ConfigMap;

    fn read(_: ConfigMap) -> Option<Self> {
        None
    }
}

#[test]
fn only_changes_of_what_matters_are_reported_and_an_empty_namespace_is_forgotten() {
    let objects = Objects::<Number>::default();
    let set = |name: &str, number: Option<u8>| objects.set("n", name.into(), number.map(Number));
    assert!(set("b", Some(1)) && set("a", Some(2)));
    assert!(!set("b", Some(1)) && set("b", Some(3)));
    assert_eq!(objects.in_namespace("n"), [Arc::new(Number(2)), Arc::new(Number(3))]);
    assert!(objects.in_namespace("other").is_empty());
    assert!(set("a", None) && !set("a", None) && set("b", None) && !set("b", None));
    assert!(objects.table.read().unwrap().is_empty());
}
