//! When each policy's status was written last. Numbers of pods and the texts of messages change with every pod of a rollout, so
//! they are written less often than conditions.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sluice_crds::RateLimitPolicyStatus;
use tokio::time::Instant;

use crate::object_key::PolicyKey;

/// Minimum time between the last write and one that changes numbers and texts only.
const MIN_INTERVAL: Duration = Duration::from_secs(10);

/// The time of the last write of each policy.
pub struct Writes {
    /// A leader that has just started finds smaller numbers until all sidecars have connected.
    began: Instant,
    last: Mutex<HashMap<PolicyKey, Instant>>,
}

impl Default for Writes {
    fn default() -> Self {
        Self { began: Instant::now(), last: Mutex::default() }
    }
}

impl Writes {
    /// Returns how long a write that changes numbers and texts only has to wait.
    pub(super) fn wait(&self, key: &PolicyKey, now: Instant) -> Option<Duration> {
        let last = self.last.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied();
        let due = last.unwrap_or(self.began) + MIN_INTERVAL;
        due.checked_duration_since(now).filter(|wait| !wait.is_zero())
    }

    pub(super) fn written(&self, key: &PolicyKey, now: Instant) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), now);
    }

    /// Forgets a deleted policy.
    pub fn forget(&self, key: &PolicyKey) {
        self.last.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

/// Reports whether a status differs from the previous one in nothing but numbers of pods and texts of messages.
pub(super) fn is_minor(previous: &RateLimitPolicyStatus, status: &RateLimitPolicyStatus) -> bool {
    let without_minor = |status: &RateLimitPolicyStatus| {
        let mut status = RateLimitPolicyStatus { pods: None, ..status.clone() };
        status.conditions.iter_mut().for_each(|condition| condition.message.clear());
        status
    };
    without_minor(previous) == without_minor(status)
}

#[cfg(test)]
mod tests {
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
}
