use serde_json::json;

use super::*;

fn status(reason: &str, message: &str) -> RateLimitPolicyStatus {
    let condition = json!({
        "type": "Programmed", "status": "False", "reason": reason, "message": message,
        "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1,
    });
    let pods = json!({"selected": 2, "injected": 2, "programmed": message.len(), "summary": message});
    let status = json!({"observedGeneration": 1, "conditions": [condition], "pods": pods});
    serde_json::from_value(status).unwrap()
}

#[test]
fn only_numbers_and_texts_are_minor() {
    let before = status("PodsUnconfirmed", "1 of 2");
    assert!(is_minor(&before, &status("PodsUnconfirmed", "2 of 2 pods")));
    assert!(!is_minor(&before, &status("Pending", "1 of 2")));
    let edited = RateLimitPolicyStatus { observed_generation: Some(2), ..before.clone() };
    let shadowed = RateLimitPolicyStatus { limits: Some("5/1h; shadowed".into()), ..before.clone() };
    assert!(!is_minor(&before, &edited) && !is_minor(&before, &shadowed));
}

#[tokio::test(start_paused = true)]
async fn a_minor_change_waits_ten_seconds_after_each_write_and_after_the_start() {
    let (writes, key) = (Writes::default(), PolicyKey::new("n", "p"));
    assert_eq!(writes.wait(&key, Instant::now()), Some(MIN_INTERVAL));
    tokio::time::advance(MIN_INTERVAL).await;
    assert_eq!(writes.wait(&key, Instant::now()), None);
    writes.written(&key, Instant::now());
    tokio::time::advance(Duration::from_secs(4)).await;
    assert_eq!(writes.wait(&key, Instant::now()), Some(Duration::from_secs(6)));
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(writes.wait(&key, Instant::now()), None);
    writes.written(&key, Instant::now());
    writes.forget(&key);
    assert_eq!(writes.wait(&key, Instant::now()), None);
}
