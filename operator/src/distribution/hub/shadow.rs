//! The clients that limits in shadow mode would have denied, merged over the pods.

use std::collections::{BTreeMap, HashSet};

use sluice_config::message::{MAX_SHADOW_DENIED, ShadowDenied};
use tokio::time::Instant;

use super::{Hub, State};
use crate::distribution::clients::recent_clients::{LimitKey, RecentClients};

/// Length of the name of a limit.
const MAX_LIMIT_NAME: usize = 63;
/// Maximum number of limits, each of which takes 2 KiB.
const MAX_LIMITS: usize = 20_000;

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
            recent.merge(sketch, now);
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
        shadow_denied.retain(|(policy, _), recent| !recent.is_empty(now) && existing.contains(policy));
        shadow_denied.iter().map(|(limit, recent)| (limit.clone(), recent.count())).collect()
    }
}
