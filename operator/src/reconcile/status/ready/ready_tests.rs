use serde_json::{Value, json};

use super::*;
use crate::reconcile::status::fixtures::published;

fn finding(status: &'static str, message: &str) -> Finding {
    Finding::new(status, "Reason", message)
}

/// Returns the message for a policy of which everything else is fine. `modes` are those of its limits.
fn message(mode: Mode, modes: &[&str], captured: &Finding, store_healthy: &Finding) -> String {
    let limit = |(index, mode): (usize, &&str)| -> Value {
        json!({"name": format!("l{index}"), "mode": mode, "rates": [{"requests": 9, "per": "1h"}]})
    };
    let limits: Vec<_> = modes.iter().enumerate().map(limit).collect();
    let mode = if mode == Mode::Shadow { "Shadow" } else { "Enforce" };
    let outcome = published(&json!({"mode": mode, "limits": limits}));
    let good = finding("True", "");
    ready(&outcome, &[("Accepted", &good), ("Captured", captured)], store_healthy, std::iter::empty()).message
}

#[tokio::test]
async fn a_policy_in_shadow_mode_does_not_read_as_if_it_were_enforced() {
    let captured = finding("True", "No known route bypasses the sidecars.");
    let store = finding("True", "");
    assert_eq!(
        message(Mode::Enforce, &["Enforce"], &captured, &store),
        "Every pod has applied this policy. No known route bypasses the sidecars."
    );
    assert_eq!(
        message(Mode::Shadow, &["Enforce", "Shadow"], &captured, &store),
        "Every pod has applied this policy. It rejects no request, because its mode is Shadow. No known route \
         bypasses the sidecars."
    );
    assert_eq!(
        message(Mode::Enforce, &["Shadow", "Enforce", "Shadow"], &captured, &store),
        "Every pod has applied this policy. 2 of 3 limits reject no request, because of the mode Shadow. No \
         known route bypasses the sidecars."
    );
}

#[tokio::test]
async fn an_unhealthy_store_is_mentioned_and_a_bypass_decides() {
    let captured = finding("True", "No known route bypasses the sidecars.");
    let store = finding("False", "");
    assert!(
        message(Mode::Enforce, &["Enforce"], &captured, &store).ends_with("see the condition StoreHealthy.")
    );
    let bypassed = finding("False", "Service web bypasses.");
    assert_eq!(message(Mode::Shadow, &["Enforce"], &bypassed, &store), "Captured: Service web bypasses.");
}
