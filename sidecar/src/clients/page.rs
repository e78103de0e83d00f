//! The page `/keys/top`.

use serde::Serialize;
use sluice_store::KeyHash;

use crate::config::snapshot::Snapshot;

/// The clients that the limits of a pod deny most often.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Page {
    limits: Vec<LimitEntry>,
}

/// A limit that has denied something in the last minutes.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct LimitEntry {
    /// `NAMESPACE/NAME`.
    policy: String,
    limit: String,
    /// Number of seconds that the numbers cover.
    seconds: u64,
    /// Most often denied first.
    clients: Vec<Client>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct Client {
    /// Hash of the key, as in the name of its counter in the store.
    key: String,
    /// The public parts of the key.
    client: String,
    /// Number of denials, at most.
    denied: u64,
    /// Number of them that may be those of other clients.
    error: u64,
}

/// Returns the clients that the limits of a snapshot deny most often, in JSON.
pub(crate) fn top_page(snapshot: &Snapshot) -> String {
    let policies = snapshot.policies.iter();
    let limits = policies.flat_map(|policy| {
        policy.limits.iter().zip(&policy.prepared.limits).filter_map(|(limit, prepared)| {
            let top = limit.denied_clients.top();
            let clients = top.clients.into_iter().map(|hitter| Client {
                key: KeyHash(hitter.key).to_string(),
                client: hitter.client,
                denied: hitter.count,
                error: hitter.error,
            });
            let clients: Vec<_> = clients.collect();
            (!clients.is_empty()).then(|| LimitEntry {
                policy: format!("{}/{}", policy.prepared.namespace, policy.prepared.name),
                limit: prepared.name.clone(),
                seconds: top.since.as_secs(),
                clients,
            })
        })
    });
    let page = Page { limits: limits.collect() };
    // Plain data always serializes.
    serde_json::to_string_pretty(&page).unwrap_or_default() + "\n"
}
