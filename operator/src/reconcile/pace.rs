//! How often the status of a policy is computed. The work grows with its pods, and in a rollout or after an edit each of them
//! causes it.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

use crate::object_key::PolicyKey;

/// Wait before a status is computed. The policy stays claimed meanwhile, so the events of a burst (reports and
/// pods of a rollout) lead to one more reconcile, and not to one each.
pub(super) const SETTLE: Duration = Duration::from_millis(50);
/// Time between two computations, for each pod that the policy selects, and the longest one.
const OF_A_POD: Duration = Duration::from_micros(250);
const MAX_INTERVAL: Duration = Duration::from_secs(1);

/// When the status of each policy may be computed next.
#[derive(Default)]
pub struct Pace(Mutex<HashMap<PolicyKey, Instant>>);

impl Pace {
    /// Returns how long the next computation has to wait.
    pub(super) fn wait(&self, key: &PolicyKey, now: Instant) -> Duration {
        let due = self.0.lock().unwrap_or_else(PoisonError::into_inner).get(key).copied();
        due.map_or(SETTLE, |due| due.duration_since(now).max(SETTLE))
    }

    /// Notes that the status of a policy with this many pods has been computed.
    pub(super) fn computed(&self, key: &PolicyKey, pods: usize, now: Instant) {
        let interval = OF_A_POD.saturating_mul(u32::try_from(pods).unwrap_or(u32::MAX)).min(MAX_INTERVAL);
        self.0.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), now + interval);
    }

    /// Forgets a deleted policy.
    pub fn forget(&self, key: &PolicyKey) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).remove(key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_with_many_pods_waits_longer_but_not_for_its_first_status() {
        let (pace, key, now) = (Pace::default(), PolicyKey::new("n", "p"), Instant::now());
        assert_eq!(pace.wait(&key, now), SETTLE);
        for (pods, wait) in [(10, SETTLE), (1_000, OF_A_POD * 1_000), (1_000_000, MAX_INTERVAL)] {
            pace.computed(&key, pods, now);
            assert_eq!(pace.wait(&key, now), wait);
            assert_eq!(pace.wait(&key, now + wait), SETTLE);
        }
        pace.forget(&key);
        assert_eq!(pace.wait(&key, now), SETTLE);
    }
}
