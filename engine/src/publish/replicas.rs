//! The replicas of each policy. The table survives edits: how much of a limit other pods may have used
//! depends on the number of replicas during the last period.

use std::collections::BTreeMap;
use std::sync::Arc;

use sluice_config::message::{self, PolicyUid};
use sluice_store::{Replica, Replicas};

use crate::publish::fit::IdentifiedPolicy;

/// More replicas than a cluster has pods. A larger number is an error of the sender.
const MAX_REPLICAS: u32 = 1 << 20;

/// The replicas of each policy.
#[derive(Debug, Default)]
pub(crate) struct ReplicaTable {
    received: BTreeMap<PolicyUid, message::Replica>,
    active: BTreeMap<PolicyUid, Arc<Replicas>>,
}

impl ReplicaTable {
    /// Records the replicas of every policy for which they are known.
    pub(crate) fn received(&mut self, replicas: &BTreeMap<PolicyUid, message::Replica>) {
        for (uid, replica) in replicas {
            let Some(valid) = validate(*replica) else {
                tracing::warn!(uid, ?replica, "received replicas of a policy that are out of range");
                continue;
            };
            if let Some(active) = self.active.get(uid)
                && self.received.get(uid) != Some(replica)
            {
                active.set(valid);
            }
        }
        let valid = replicas.iter().filter(|(_, replica)| validate(**replica).is_some());
        self.received = valid.map(|(uid, replica)| (uid.clone(), *replica)).collect();
    }

    /// Returns the replicas of the policies that become active, in their order.
    pub(crate) fn activate(&mut self, policies: &[&IdentifiedPolicy]) -> Vec<Arc<Replicas>> {
        let mut before = std::mem::take(&mut self.active);
        let replicas = |uid: &PolicyUid| {
            let received = self.received.get(uid).copied().and_then(validate);
            before.remove(uid).unwrap_or_else(|| Replicas::new(received.unwrap_or(Replica::ONLY)))
        };
        let uids = || policies.iter().map(|(uid, _)| uid);
        let active: Vec<_> = uids().map(replicas).collect();
        self.active = uids().cloned().zip(active.iter().cloned()).collect();
        active
    }
}

fn validate(replica: message::Replica) -> Option<Replica> {
    let message::Replica { index, count } = replica;
    (index < count && count <= MAX_REPLICAS).then(|| Replica::new(index, count))
}
