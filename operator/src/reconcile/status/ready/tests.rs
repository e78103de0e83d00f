use sluice_config::PolicyHash;
use sluice_config::policy::{Consistency, OnStoreFailure};
use tokio::time::Instant;

use super::*;

fn finding(status: &'static str, message: &str) -> Finding {
    Finding::new(status, "Reason", message)
}

fn message(mode: Mode, captured: &Finding, store_healthy: &Finding) -> String {
    let outcome = Outcome::Published {
        policy: Box::new(CompiledPolicy {
            namespace: "shop".into(),
            name: "p".into(),
            mode,
            on_store_failure: OnStoreFailure::Allow,
            consistency: Consistency::Strict,
            ambiguous_paths: Default::default(),
            client_address: None,
            limits: Vec::new(),
            hints: Default::default(),
        }),
        hash: PolicyHash::of("p"),
        selector: Default::default(),
        published_at: Instant::now(),
    };
    let good = finding("True", "");
    ready(&outcome, &good, &good, captured, store_healthy).message
}

#[tokio::test]
async fn a_policy_in_shadow_mode_does_not_read_as_if_it_were_enforced() {
    let captured = finding("True", "No known route bypasses the sidecars.");
    let store = finding("True", "");
    assert_eq!(
        message(Mode::Enforce, &captured, &store),
        "Every pod has applied this policy. No known route bypasses the sidecars."
    );
    assert_eq!(
        message(Mode::Shadow, &captured, &store),
        "Every pod has applied this policy. It rejects no request, because its mode is Shadow. No known route \
         bypasses the sidecars."
    );
}

#[tokio::test]
async fn an_unhealthy_store_is_mentioned_and_a_bypass_decides() {
    let captured = finding("True", "No known route bypasses the sidecars.");
    let store = finding("False", "");
    assert!(message(Mode::Enforce, &captured, &store).ends_with("see the condition StoreHealthy."));
    let bypassed = finding("False", "Service web bypasses.");
    assert_eq!(message(Mode::Shadow, &bypassed, &store), "Captured: Service web bypasses.");
}
