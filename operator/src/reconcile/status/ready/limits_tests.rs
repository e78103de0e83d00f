use serde_json::json;

use super::*;
use crate::reconcile::facts::{CountedPod, Facts};
use crate::reconcile::status::fixtures::{observed, pod as plain, published};

fn pod(name: &str, nearly_full: &[&str]) -> CountedPod {
    let names = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect();
    let findings = PolicyFindings { nearly_full: names(nearly_full), ..PolicyFindings::NOTHING };
    CountedPod { findings, ..plain(name) }
}

fn with_unclear(name: &str, limit: &str) -> CountedPod {
    let findings = PolicyFindings { unclear_keys: vec![limit.to_owned()], ..PolicyFindings::NOTHING };
    CountedPod { findings, ..plain(name) }
}

/// Returns what the message of the condition Ready says.
fn message(pods: Vec<CountedPod>) -> String {
    let limit = |name| {
        let key = json!({"parts": [{"header": {"name": "x-client"}}]});
        json!({"name": name, "key": key, "maxKeys": 20_000, "rates": [{"requests": 5, "per": "1m"}]})
    };
    let outcome = published(&json!({"limits": [limit("one"), limit("other")]}));
    let facts = Facts { pods, ..Facts::default() };
    let observed = observed(&outcome, &facts);
    [nearly_full(&observed), unclear_keys(&observed)].into_iter().flatten().collect()
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
async fn limits_whose_keys_are_not_clear_are_named_with_what_to_do() {
    let text = message(vec![with_unclear("a", "one"), pod("b", &[])]);
    assert!(text.starts_with("1 limit has many requests whose key is not clear"), "{text}");
    assert!(text.contains(": one. `sluice explain` says why") && text.contains("spec.application"), "{text}");
    assert_eq!(message(vec![with_unclear("a", "Everything is fine")]), "");
}

#[tokio::test]
async fn a_sidecar_can_put_no_other_text_into_the_message() {
    assert_eq!(message(vec![pod("a", &["Everything is fine"])]), "");
}
