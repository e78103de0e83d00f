//! How often the status of a policy is computed, and written. The work grows with its pods, and in a rollout or after an edit each of
//! them causes it. While pods keep coming, the time between two computations doubles up to [`LONGEST_STREAK`] times. Numbers of pods and
//! the texts of messages change with every pod of a rollout, so they are written less often than conditions.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::Duration;

use sluice_config::PolicyHash;
use sluice_crds::RateLimitPolicyStatus;
use tokio::time::Instant;

use crate::locks::lock;
use crate::names::PolicyKey;

#[cfg(test)]
mod tests;

/// Wait before a status is computed. The policy stays claimed meanwhile, so the events of a burst (reports and
/// pods of a rollout) lead to one more reconcile, and not to one each.
pub(super) const SETTLE: Duration = Duration::from_millis(50);
/// Time between two computations, for each pod that the policy selects, and the longest one for a new edit.
pub(super) const OF_A_POD: Duration = Duration::from_micros(250);
const MAX_INTERVAL: Duration = Duration::from_secs(2);
/// Longest time between two computations while pods keep coming.
const MAX_WHILE_PODS_COME: Duration = Duration::from_secs(4);
/// Time without events after which a computation is the first one again.
const REST: Duration = Duration::from_secs(2);
/// How often the time between two computations doubles.
const LONGEST_STREAK: u32 = 4;

/// When the status of each policy was computed, and how long the next computation has to wait.
#[derive(Default)]
pub struct Pace(Mutex<HashMap<PolicyKey, Turn>>);

struct Turn {
    computed: Instant,
    /// Shortest time until the next computation.
    interval: Duration,
    /// How often it has doubled: number of computations without a rest between them, up to [`LONGEST_STREAK`].
    streak: u32,
    /// The edit that all pods had confirmed.
    confirmed: Option<PolicyHash>,
}

impl Turn {
    fn due(&self, is_new: bool) -> Instant {
        let doubled = self.interval * if is_new { 1 } else { 1 << self.streak };
        self.computed + doubled.min(MAX_WHILE_PODS_COME)
    }
}

impl Pace {
    /// Returns how long the next computation has to wait. An edit that is new does not wait longer because pods keep coming, unless
    /// all of them had confirmed it.
    pub(super) fn wait(
        &self,
        key: &PolicyKey,
        is_new: bool,
        edit: Option<&PolicyHash>,
        now: Instant,
    ) -> Duration {
        let turns = lock(&self.0);
        let Some(turn) = turns.get(key) else { return SETTLE };
        let is_confirmed = edit.is_some() && turn.confirmed.as_ref() == edit;
        turn.due(is_new && !is_confirmed).duration_since(now).max(SETTLE)
    }

    /// Notes that the status of a policy with this many pods has been computed, and the edit that all of them have confirmed.
    pub(super) fn computed(&self, key: &PolicyKey, pods: usize, confirmed: Option<PolicyHash>, now: Instant) {
        let interval = OF_A_POD.saturating_mul(u32::try_from(pods).unwrap_or(u32::MAX)).min(MAX_INTERVAL);
        let mut turns = lock(&self.0);
        let before = turns.get(key).filter(|before| now < before.due(false) + before.interval.max(REST));
        let streak = before.map_or(0, |before| (before.streak + 1).min(LONGEST_STREAK));
        turns.insert(key.clone(), Turn { computed: now, interval, streak, confirmed });
    }

    /// Forgets a deleted policy.
    pub fn forget(&self, key: &PolicyKey) {
        lock(&self.0).remove(key);
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
