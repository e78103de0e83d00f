//! The page `/keys/peek`: the counter of one client.

use std::sync::Arc;

use sluice_config::client_pages::{NamedClient, OpenReservations, PeekQuestion, Peeked};
use sluice_config::prepared::rate_set::Choice;
use sluice_store::KeyHash;

use super::counter_state;
use crate::limit::active::ActivePolicy;
use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;

/// Most policies that an error names.
const MAX_NAMED: usize = 20;

/// Reads the counter of a client.
pub(crate) async fn peek(snapshot: &Snapshot, question: &PeekQuestion) -> Result<Peeked, String> {
    let (p, policy) = (0..)
        .zip(&*snapshot.policies)
        .find(|(_, policy)| is_named(policy, &question.policy))
        .ok_or_else(|| unknown(snapshot, &question.policy))?;
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
        Some(Choice::Unlimited) => {
            (0, Some("the limit; an override admits all requests of this client".to_owned()))
        }
        Some(Choice::Deny) => {
            (0, Some("the limit; an override denies all requests of this client".to_owned()))
        }
        None => {
            let has_others =
                limit.rate_sets().len() > 1 && limit.boosted_below().is_none() || limit.overrides().is_some();
            let exception = has_others.then(|| "the limit; a tier or plan may apply others: `sluice explain` tells, with the headers of a request".to_owned());
            (u16::from(snapshot.limit(index).is_boosted()), exception)
        }
    };
    let plan = limit.rate_sets().get(usize::from(rates)).and_then(|set| set.exception.clone());
    Ok(Peeked {
        policy: policy.prepared.qualified_name(),
        limit: question.limit.clone(),
        key: key.to_string(),
        exception: exception.or(plan),
        reserved: reserved(snapshot, index, key).await,
        state: counter_state::read(snapshot, LimitIndex { rates, ..index }, key).await,
    })
}

/// Returns what is reserved in a counter of rates; `None` if that is nothing, or if the store does not tell.
async fn reserved(snapshot: &Snapshot, index: LimitIndex, key: KeyHash) -> Option<OpenReservations> {
    let active = snapshot.limit(index);
    let plan = &active.base().plan;
    if active.concurrency.is_some() || active.adaptive.is_some() || plan.consistency.is_local() {
        return None;
    }
    let ledger = Arc::new(active.ledger());
    let looked = snapshot.limiter(index).peek(&ledger, key).await.ok().flatten()?;
    let ledger = looked.first()?;
    let cost = ledger.limit.saturating_sub(ledger.remaining);
    (cost > 0).then(|| OpenReservations { cost, expire_seconds: ledger.reset as f64 / 1e6 })
}

/// Reports whether a policy has this name, with or without its namespace: all policies of a pod are of one namespace.
fn is_named(policy: &ActivePolicy, name: &str) -> bool {
    if name.contains('/') { policy.prepared.qualified_name() == name } else { policy.prepared.name == name }
}

fn unknown(snapshot: &Snapshot, name: &str) -> String {
    let all = snapshot.policies.iter();
    let mut names: Vec<_> = all.map(|policy| policy.prepared.qualified_name()).take(MAX_NAMED + 1).collect();
    if names.len() > MAX_NAMED {
        names[MAX_NAMED] = format!("{} others", snapshot.policies.len() - MAX_NAMED);
    }
    let names = if names.is_empty() { "none".to_owned() } else { names.join(", ") };
    format!("this pod enforces no policy {name}: it enforces {names}")
}
