//! The page `/keys/peek`: the counter of one client.

use sluice_config::client_pages::{NamedClient, PeekQuestion, Peeked};
use sluice_config::prepared::rate_set::Choice;
use sluice_store::KeyHash;

use super::{counter_state, policy_name};
use crate::config::snapshot::Snapshot;
use crate::limit::index::LimitIndex;

/// Reads the counter of a client.
pub(super) async fn peek(snapshot: &Snapshot, question: &PeekQuestion) -> Result<Peeked, String> {
    let (p, policy) = (0..)
        .zip(&*snapshot.policies)
        .find(|(_, policy)| policy_name(policy) == question.policy)
        .ok_or_else(|| format!("this pod enforces no policy {}", question.policy))?;
    let (l, limit) = (0..)
        .zip(&policy.prepared.limits)
        .find(|(_, limit)| limit.name == question.limit)
        .ok_or_else(|| {
            let names: Vec<_> = policy.prepared.limits.iter().map(|limit| limit.name.as_str()).collect();
            format!(
                "policy {} has no limit {}: its limits are {}",
                question.policy,
                question.limit,
                names.join(", ")
            )
        })?;
    let (key, choice) = match &question.client {
        NamedClient::Values(values) => {
            let (key, choice) = limit
                .client(snapshot.secret(policy), values)
                .map_err(|error| format!("limit {}: {error}", question.limit))?;
            (KeyHash(key), choice)
        }
        NamedClient::Hash(hash) => (hash.parse().map_err(|error| format!("{hash:?}: {error}"))?, None),
    };
    let index = LimitIndex { policy: p, limit: l, rates: 0 };
    let (rates, exception) = match choice {
        Some(Choice::Rates(rates)) => (rates, None),
        Some(Choice::Unlimited) => (0, Some("an override: unlimited".to_owned())),
        Some(Choice::Deny) => (0, Some("an override: denied".to_owned())),
        None => (u16::from(snapshot.limit(index).is_boosted()), None),
    };
    let plan = limit.rate_sets().get(usize::from(rates)).and_then(|set| set.exception.clone());
    Ok(Peeked {
        policy: question.policy.clone(),
        limit: question.limit.clone(),
        key: key.to_string(),
        exception: exception.or(plan),
        state: counter_state::read(snapshot, LimitIndex { rates, ..index }, key).await,
    })
}
