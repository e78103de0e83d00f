//! The page `/keys/top`.

use sluice_config::client_pages::{Top, TopClient, TopLimit};
use sluice_store::KeyHash;

use crate::limit::snapshot::Snapshot;

/// Returns the clients that the limits of a snapshot deny most often.
pub(super) fn top(snapshot: &Snapshot) -> Top {
    let policies = snapshot.policies.iter();
    let limits = policies.flat_map(|policy| {
        policy.limits.iter().zip(&policy.prepared.limits).filter_map(|(limit, prepared)| {
            let top = limit.denied_clients.top();
            let clients = top.clients.into_iter().map(|hitter| TopClient {
                key: KeyHash(hitter.key).to_string(),
                client: hitter.client.to_string(),
                denied: hitter.count,
                error: hitter.error,
            });
            let clients: Vec<_> = clients.collect();
            (!clients.is_empty()).then(|| TopLimit {
                policy: policy.prepared.qualified_name(),
                limit: prepared.name.clone(),
                effect: prepared.effect_name().to_owned(),
                seconds: top.since.as_secs(),
                clients,
            })
        })
    });
    Top { limits: limits.collect() }
}
