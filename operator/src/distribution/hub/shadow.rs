//! The clients that limits in Shadow would have denied, merged over the pods.

use std::collections::{BTreeMap, HashMap};

use sluice_config::message::{MAX_SHADOW_DENIED, ShadowDenied};
use sluice_config::policy::Mode;
use tokio::time::Instant;

use super::{DistributedPolicy, Hub, State};
use crate::distribution::clients::recent_clients::{LimitKey, RecentClients};

/// Maximum number of limits, each of which takes 2 KiB.
const MAX_LIMITS: usize = 20_000;

impl State {
    /// Takes what a pod reports about its own policies.
    pub(super) fn take_shadow_denied(&mut self, pod_uid: &str, reported: &ShadowDenied) {
        if reported.is_empty() {
            return;
        }
        let Some(session) = self.sessions.get(pod_uid) else { return };
        let now = Instant::now();
        let limits = reported
            .iter()
            .flat_map(|(policy, limits)| limits.iter().map(move |(limit, sketch)| (policy, limit, sketch)));
        for (name, limit, sketch) in limits.take(MAX_SHADOW_DENIED) {
            let Some((_, policy)) =
                self.policies_of(session).find(|(_, policy)| policy.key.to_string() == *name)
            else {
                continue;
            };
            let key = (policy.key.clone(), limit.clone());
            let has_room = self.shadow_denied.len() < MAX_LIMITS || self.shadow_denied.contains_key(&key);
            if let (true, true, Ok(sketch)) = (is_shadow(policy, limit, self.mode), has_room, sketch.parse())
            {
                let recent = self.shadow_denied.entry(key).or_insert_with(|| RecentClients::new(now));
                recent.merge(&sketch, now);
            }
        }
    }
}

/// Reports whether a policy has a limit in Shadow with this name.
fn is_shadow(policy: &DistributedPolicy, limit: &str, installation: Mode) -> bool {
    let mut limits = policy.limits.iter();
    limits.any(|known| known.name == limit && (known.mode == Mode::Shadow || installation == Mode::Shadow))
}

impl Hub {
    /// Returns how many clients each limit in Shadow would have denied in the last minutes, over all pods.
    #[must_use]
    pub fn shadow_denied(&self) -> BTreeMap<LimitKey, u64> {
        let (mut state, now) = (self.lock(), Instant::now());
        let State { shadow_denied, policies, mode, .. } = &mut *state;
        let existing: HashMap<_, _> = policies.values().map(|policy| (&policy.key, policy)).collect();
        shadow_denied.retain(|(policy, limit), recent| {
            !recent.is_empty(now)
                && existing.get(policy).is_some_and(|policy| is_shadow(policy, limit, *mode))
        });
        let copy: Vec<_> =
            shadow_denied.iter().map(|(limit, recent)| (limit.clone(), recent.all())).collect();
        drop(state);
        copy.into_iter().map(|(limit, clients)| (limit, clients.count())).collect()
    }
}
