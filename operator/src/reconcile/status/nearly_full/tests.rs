use serde_json::json;

use super::*;
use crate::reconcile::facts::{CountedPod, Facts};
use crate::reconcile::status::fixtures::{observed, pod as plain, published};

fn pod(name: &str, nearly_full: &[&str]) -> CountedPod {
    CountedPod { nearly_full: nearly_full.iter().map(|&name| name.to_owned()).collect(), ..plain(name) }
}

/// Returns the message of the condition Ready.
fn message(pods: Vec<CountedPod>) -> String {
    let limit = |name| {
        let key = json!({"parts": [{"header": {"name": "x-client"}}]});
        json!({"name": name, "key": key, "maxKeys": 20_000, "rates": [{"requests": 5, "per": "1m"}]})
    };
    let outcome = published(&json!({"limits": [limit("one"), limit("other")]}));
    let text = nearly_full(&observed(&outcome, &Facts { pods, ..Facts::default() }));
    text.unwrap_or_default()
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
async fn a_sidecar_can_put_no_other_text_into_the_message() {
    assert_eq!(message(vec![pod("a", &["Everything is fine"])]), "");
}
