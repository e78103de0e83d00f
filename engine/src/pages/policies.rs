//! The page `/policies`: the policies that the sidecar enforces.

use sluice_config::client_pages::{PoliciesInForce, PolicyInForce};
use sluice_store::StoreHealth;

use crate::files::FollowedFiles;
use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;

/// Returns the policies of a snapshot, with the health of their stores, and the files that differ from them.
pub(super) fn policies(snapshot: &Snapshot, files: &FollowedFiles) -> PoliciesInForce {
    let policies = (0..).zip(&*snapshot.policies).map(|(p, policy)| PolicyInForce {
        policy: policy.prepared.qualified_name(),
        hash: policy.prepared.hash.to_string(),
        store: policy.prepared.store.clone(),
        health: match snapshot.limiter(LimitIndex { policy: p, limit: 0, rates: 0 }).health() {
            StoreHealth::Starting => "starting",
            StoreHealth::Healthy => "healthy",
            StoreHealth::Failing(fault) => fault.as_str(),
        }
        .to_owned(),
    });
    PoliciesInForce { policies: policies.collect(), rejected: files.all_rejected() }
}
