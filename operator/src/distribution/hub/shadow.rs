//! The clients that limits in shadow mode would have denied, merged over the pods.

use std::collections::{BTreeMap, HashSet};
use std::time::Duration;

use sluice_config::distinct::DistinctSketch;
use sluice_config::message::{MAX_SHADOW_DENIED, ShadowDenied};
use tokio::time::Instant;

use super::{Hub, State};
use crate::object_key::PolicyKey;

/// Half of the time for which a client that a pod has reported counts at most. Pods report those of up to five minutes.
const HALF: Duration = Duration::from_secs(300);
/// Length of the name of a limit.
const MAX_LIMIT_NAME: usize = 63;
/// Maximum number of limits, each of which takes 2 KiB.
const MAX_LIMITS: usize = 20_000;

/// A limit of a policy.
pub(super) type LimitKey = (PolicyKey, String);

/// The clients that a limit would have denied recently.
#[derive(Debug)]
pub(super) struct RecentClients {
    older: DistinctSketch,
    newer: DistinctSketch,
    /// Begin of the newer half.
    begun: Instant,
}

impl RecentClients {
    fn new(now: Instant) -> Self {
        Self { older: DistinctSketch::default(), newer: DistinctSketch::default(), begun: now }
    }

    /// Begins another half if the newer one is over.
    fn turn(&mut self, now: Instant) {
        let passed = now - self.begun;
        if passed >= HALF {
            let newer = std::mem::take(&mut self.newer);
            self.older = if passed < 2 * HALF { newer } else { DistinctSketch::default() };
            self.begun = now;
        }
    }

    fn count(&self) -> u64 {
        let mut all = self.older.clone();
        all.merge(&self.newer);
        all.count()
    }
}

impl State {
    /// Takes what a pod reports about its own policies.
    pub(super) fn take_shadow_denied(&mut self, pod_uid: &str, reported: &ShadowDenied) {
        if reported.is_empty() {
            return;
        }
        let (policies, now) = (self.policies_of(pod_uid), Instant::now());
        let limits = reported
            .iter()
            .flat_map(|(policy, limits)| limits.iter().map(move |(limit, sketch)| (policy, limit, sketch)));
        for (name, limit, sketch) in limits.take(MAX_SHADOW_DENIED) {
            let Some(policy) = policies.iter().find(|policy| policy.name == *name) else { continue };
            let has_room = self.shadow_denied.len() < MAX_LIMITS;
            let key = (policy.clone(), limit.clone());
            if limit.len() > MAX_LIMIT_NAME || !has_room && !self.shadow_denied.contains_key(&key) {
                continue;
            }
            let recent = self.shadow_denied.entry(key).or_insert_with(|| RecentClients::new(now));
            recent.turn(now);
            recent.newer.merge(sketch);
        }
    }
}

impl Hub {
    /// Returns how many clients each limit in shadow mode would have denied in the last minutes, over all pods.
    #[must_use]
    pub fn shadow_denied(&self) -> BTreeMap<LimitKey, u64> {
        let (mut state, now) = (self.lock(), Instant::now());
        let State { shadow_denied, policies, .. } = &mut *state;
        let existing: HashSet<_> = policies.values().map(|policy| &policy.key).collect();
        shadow_denied.retain(|(policy, _), recent| {
            recent.turn(now);
            !(recent.older.is_empty() && recent.newer.is_empty()) && existing.contains(policy)
        });
        shadow_denied.iter().map(|(limit, recent)| (limit.clone(), recent.count())).collect()
    }
}

#[cfg(test)]
mod tests {
    use sluice_config::message::{Report, VERSION};

    use super::*;
    use crate::distribution::fixtures::{hub, identity, publish, selector, strict};
    use crate::distribution::identity::Identity;

    fn report(hub: &Hub, session: &str, policy: &str, clients: std::ops::Range<u64>) {
        let mut sketch = DistinctSketch::default();
        clients.for_each(|n| sketch.add(u128::from((n + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15))));
        let limits: BTreeMap<_, _> = [("l".to_owned(), sketch.clone()), ("l".repeat(64), sketch)].into();
        let (policies, stores, resets) = Default::default();
        let shadow_denied = [(policy.to_owned(), limits)].into();
        let session = session.into();
        assert!(hub.report(Report { version: VERSION, session, policies, stores, shadow_denied, resets }));
    }

    #[tokio::test(start_paused = true)]
    async fn a_client_that_several_pods_would_have_denied_counts_once() {
        let hub = hub();
        publish(&hub, "1", selector("a"), &strict());
        let mut closed = Vec::new();
        for (uid, app) in [("one", "a"), ("two", "a"), ("other", "b")] {
            let pod = Identity { pod_uid: uid.into(), ..identity(&[("app", app)]) };
            closed.push(hub.connect(pod, uid));
        }
        report(&hub, "one", "p", 0..20);
        report(&hub, "two", "p", 10..30);
        // Neither a pod that the policy does not select nor a policy that does not exist.
        report(&hub, "other", "p", 100..200);
        let counts = hub.shadow_denied();
        let limit = (PolicyKey::new("n", "p"), "l".to_owned());
        assert_eq!(counts.keys().collect::<Vec<_>>(), [&limit]);
        assert!((28..=32).contains(&counts[&limit]), "{counts:?}");
        report(&hub, "two", "unknown", 10..30);
        tokio::time::advance(HALF).await;
        report(&hub, "one", "p", 40..50);
        assert!((37..=43).contains(&hub.shadow_denied()[&limit]));
        tokio::time::advance(HALF).await;
        assert!((9..=11).contains(&hub.shadow_denied()[&limit]));
        hub.remove("1");
        assert!(hub.shadow_denied().is_empty());
    }
}
