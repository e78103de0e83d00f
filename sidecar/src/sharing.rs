//! Which pods share each policy: what was said last, and the same for the limits in force. It outlives edits: only the
//! number of pods in the last period tells how much of a limit others may have used.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_config::PreparedPolicy;
use sluice_config::message::{PolicyUid, Sharing};
use sluice_store::layers::{Live, Sharers};

/// More pods than a cluster has: whoever says so is wrong.
const MOST_PODS: u32 = 1 << 20;

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct SharingPods {
    told: BTreeMap<PolicyUid, Sharing>,
    in_force: BTreeMap<PolicyUid, Arc<Sharers>>,
}

impl SharingPods {
    /// This was said. It names every policy of which anything is known.
    pub(crate) fn told(&mut self, sharing: &BTreeMap<PolicyUid, Sharing>) {
        for (uid, sharing) in sharing {
            if live(*sharing).is_none() {
                tracing::warn!(uid, ?sharing, "so many pods cannot share a policy");
            } else if let Some(sharers) = self.in_force.get(uid)
                && self.told.get(uid) != Some(sharing)
            {
                sharers.set(live(*sharing).unwrap_or(Live::ALONE));
            }
        }
        self.told =
            sharing.iter().filter(|(_, s)| live(**s).is_some()).map(|(u, s)| (u.clone(), *s)).collect();
    }

    /// Those of the policies that are in force from now on, in their order.
    pub(crate) fn of(&mut self, policies: &[&(PolicyUid, Arc<PreparedPolicy>)]) -> Vec<Arc<Sharers>> {
        let mut before = std::mem::take(&mut self.in_force);
        let sharers = |uid: &PolicyUid| {
            let told = || Sharers::new(self.told.get(uid).copied().and_then(live).unwrap_or(Live::ALONE));
            before.remove(uid).unwrap_or_else(told)
        };
        let sharers: Vec<_> = policies.iter().map(|(uid, _)| uid).map(sharers).collect();
        self.in_force = policies.iter().map(|(uid, _)| uid.clone()).zip(sharers.iter().cloned()).collect();
        sharers
    }
}

fn live(sharing: Sharing) -> Option<Live> {
    let Sharing { index, count } = sharing;
    (index < count && count <= MOST_PODS).then(|| Live::numbered(index, count))
}
