//! Which pods share each policy: what was said last, and the same for the limits in force. It outlives edits: only the
//! number of pods in the last period tells how much of a limit others may have used.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_config::PreparedPolicy;
use sluice_config::message::{self, PolicyUid};
use sluice_store::layers::{Replica, Replicas};

/// More pods than a cluster has: whoever says so is wrong.
const MOST_PODS: u32 = 1 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct SharingPods {
    told: BTreeMap<PolicyUid, message::Replica>,
    in_force: BTreeMap<PolicyUid, Arc<Replicas>>,
}

impl SharingPods {
    /// This was said. It names every policy of which anything is known.
    pub(crate) fn told(&mut self, sharing: &BTreeMap<PolicyUid, message::Replica>) {
        for (uid, sharing) in sharing {
            if live(*sharing).is_none() {
                tracing::warn!(uid, ?sharing, "so many pods cannot share a policy");
            } else if let Some(sharers) = self.in_force.get(uid)
                && self.told.get(uid) != Some(sharing)
            {
                sharers.set(live(*sharing).unwrap_or(Replica::ONLY));
            }
        }
        self.told =
            sharing.iter().filter(|(_, s)| live(**s).is_some()).map(|(u, s)| (u.clone(), *s)).collect();
    }

    /// Those of the policies that are in force from now on, in their order.
    pub(crate) fn of(&mut self, policies: &[&(PolicyUid, Arc<PreparedPolicy>)]) -> Vec<Arc<Replicas>> {
        let mut before = std::mem::take(&mut self.in_force);
        let sharers = |uid: &PolicyUid| {
            let told = || Replicas::new(self.told.get(uid).copied().and_then(live).unwrap_or(Replica::ONLY));
            before.remove(uid).unwrap_or_else(told)
        };
        let sharers: Vec<_> = policies.iter().map(|(uid, _)| uid).map(sharers).collect();
        self.in_force = policies.iter().map(|(uid, _)| uid.clone()).zip(sharers.iter().cloned()).collect();
        sharers
    }
}

fn live(sharing: message::Replica) -> Option<Replica> {
    let message::Replica { index, count } = sharing;
    (index < count && count <= MOST_PODS).then(|| Replica::new(index, count))
}
