//! How often the status of a policy is computed. The work grows with its pods, and in a rollout or after an edit each of them
//! causes it. While pods keep coming, the time between two computations doubles up to [`LONGEST_STREAK`] times. Replicas, of which
//! there are messages to sidecars, are counted at least every [`COUNT_INTERVAL`] meanwhile.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use sluice_config::PolicyHash;
use tokio::time::Instant;

use crate::object_key::PolicyKey;

/// Wait before a status is computed. The policy stays claimed meanwhile, so the events of a burst (reports and
/// pods of a rollout) lead to one more reconcile, and not to one each.
pub(super) const SETTLE: Duration = Duration::from_millis(50);
/// Time between two computations, for each pod that the policy selects, and the longest one for a new edit.
const OF_A_POD: Duration = Duration::from_micros(250);
const MAX_INTERVAL: Duration = Duration::from_secs(2);
/// Longest time between two computations while pods keep coming.
const MAX_WHILE_PODS_COME: Duration = Duration::from_secs(4);
/// Longest time for which changes of replicas wait for the status.
pub(super) const COUNT_INTERVAL: Duration = Duration::from_secs(1);
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
        let turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(turn) = turns.get(key) else { return SETTLE };
        let is_confirmed = edit.is_some() && turn.confirmed.as_ref() == edit;
        turn.due(is_new && !is_confirmed).duration_since(now).max(SETTLE)
    }

    /// Notes that the status of a policy with this many pods has been computed, and the edit that all of them have confirmed.
    pub(super) fn computed(&self, key: &PolicyKey, pods: usize, confirmed: Option<PolicyHash>, now: Instant) {
        let interval = OF_A_POD.saturating_mul(u32::try_from(pods).unwrap_or(u32::MAX)).min(MAX_INTERVAL);
        let mut turns = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let before = turns.get(key).filter(|before| now < before.due(false) + before.interval.max(REST));
        let streak = before.map_or(0, |before| (before.streak + 1).min(LONGEST_STREAK));
        turns.insert(key.clone(), Turn { computed: now, interval, streak, confirmed });
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
}
