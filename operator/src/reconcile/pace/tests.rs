use serde_json::json;

use super::*;

#[test]
fn a_policy_with_many_pods_waits_longer_but_not_for_its_first_status() {
    let (pace, key, now) = (Pace::default(), PolicyKey::new("n", "p"), Instant::now());
    assert_eq!(pace.wait(&key, false, None, now), SETTLE);
    for (pods, wait) in [(10, SETTLE), (1_000, OF_A_POD * 1_000), (1_000_000, MAX_INTERVAL)] {
        pace.computed(&key, pods, None, now);
        assert_eq!(pace.wait(&key, false, None, now), wait);
        assert_eq!(pace.wait(&key, false, None, now + wait), SETTLE);
        pace.forget(&key);
    }
    assert_eq!(pace.wait(&key, false, None, now), SETTLE);
}

#[test]
fn while_events_keep_coming_it_is_computed_less_often_and_after_a_rest_as_before() {
    let (pace, key, mut now) = (Pace::default(), PolicyKey::new("n", "p"), Instant::now());
    let (one, other) = (PolicyHash::of("one"), PolicyHash::of("other"));
    let interval = OF_A_POD * 1_000;
    for times in [1, 2, 4, 8, 16, 16] {
        pace.computed(&key, 1_000, Some(one.clone()), now);
        assert_eq!(pace.wait(&key, false, Some(&one), now), interval * times);
        assert_eq!(
            pace.wait(&key, true, Some(&one), now),
            interval * times,
            "a new edit that all have confirmed"
        );
        assert_eq!(pace.wait(&key, true, Some(&other), now), interval, "one that they have not");
        assert_eq!(pace.wait(&key, true, None, now), interval, "one that was not published");
        now += interval * times;
    }
    now += REST;
    pace.computed(&key, 1_000, None, now);
    assert_eq!(pace.wait(&key, false, Some(&one), now), interval);
    now += MAX_WHILE_PODS_COME;
    for wait in [MAX_INTERVAL, MAX_WHILE_PODS_COME, MAX_WHILE_PODS_COME] {
        pace.computed(&key, 10_000, None, now);
        assert_eq!(pace.wait(&key, false, Some(&one), now), wait);
        assert_eq!(pace.wait(&key, true, Some(&one), now), MAX_INTERVAL, "a new edit");
        now += wait;
    }
}

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
