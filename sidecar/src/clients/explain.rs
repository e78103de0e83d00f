//! The page `/explain`: which limits a request would meet, as which client, and why not the others. Nothing is counted.

use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use futures::future::join_all;
use http::Request;
use http_body_util::Empty;
use sluice_config::client_pages::{CounterState, ExplainQuestion, ExplainedLimit, Explanation, LimitResult};
use sluice_config::prepared::{Identified, Refusal};
use sluice_store::KeyHash;

use super::{counter_state, policy_name};
use crate::config::snapshot::Snapshot;
use crate::limit::active::{ActivePolicy, Effect};
use crate::limit::index::LimitIndex;
use crate::limit::matching::attributes;

/// Number of limits whose counters are read.
const MAX_READ: usize = 64;

fn request(question: &ExplainQuestion) -> Result<(Request<Empty<Bytes>>, IpAddr), String> {
    let ExplainQuestion { method, target, headers, peer } = question;
    if !target.starts_with('/') {
        return Err(format!(
            "the target {target:?} does not begin with a slash: write for example /orders?page=2"
        ));
    }
    let mut request = Request::builder().method(method.as_str()).uri(target.as_str());
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request =
        request.body(Empty::new()).map_err(|error| format!("no such request can be sent: {error}"))?;
    Ok((request, peer.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))))
}

/// Explains what the limits of a snapshot do about a request.
pub(super) async fn explain(snapshot: &Snapshot, question: &ExplainQuestion) -> Result<Explanation, String> {
    let (request, peer) = request(question)?;
    let mut read = 0;
    let limits = (0..).zip(&*snapshot.policies).flat_map(|(p, policy)| {
        (0..).zip(&policy.limits).map(move |(l, _)| (policy, LimitIndex { policy: p, limit: l, rates: 0 }))
    });
    let limits = limits.map(|(policy, index)| {
        let attributes = attributes(&request, peer, None);
        let position = usize::from(index.limit);
        let prepared = &policy.prepared.limits[position];
        let identified = policy.prepared.explain(prepared, &attributes, snapshot.secret(policy));
        let client = || policy.prepared.describe_client(position, &attributes);
        let counted = identified.map(|identified| match identified {
            Identified::Counted { key, rates, cost } => {
                read += 1;
                let rates = if snapshot.limit(index).is_boosted() { 1 } else { rates };
                Ok((LimitIndex { rates, ..index }, KeyHash(key), cost, client(), read <= MAX_READ))
            }
            Identified::Refused(Refusal::KeyMissing) => {
                Err("a part of the key is missing, and onMissing is Deny")
            }
            Identified::Refused(Refusal::Tier) => Err("the tier or plan of the client admits nothing"),
        });
        explained(snapshot, policy, index, counted)
    });
    let limits: Vec<_> = limits.collect();
    Ok(Explanation { limits: join_all(limits).await })
}

/// A limit that counts the request: its rates, the client, the cost, the client in words, and whether its counter is read.
type Counted = (LimitIndex, KeyHash, u64, String, bool);

async fn explained(
    snapshot: &Snapshot,
    policy: &ActivePolicy,
    index: LimitIndex,
    counted: Result<Result<Counted, &'static str>, String>,
) -> ExplainedLimit {
    let prepared = &policy.prepared.limits[usize::from(index.limit)];
    let result = match counted {
        Err(reason) => LimitResult::DoesNotApply { reason },
        Ok(Err(reason)) => LimitResult::Denies { reason: reason.to_owned() },
        Ok(Ok((index, key, cost, client, is_read))) => LimitResult::Counts {
            key: key.to_string(),
            client,
            exception: prepared
                .rate_sets()
                .get(usize::from(index.rates))
                .and_then(|set| set.exception.clone()),
            cost,
            state: if is_read {
                counter_state::read(snapshot, index, key).await
            } else {
                CounterState::Unknown(format!("only the counters of the first {MAX_READ} limits are read"))
            },
        },
    };
    let effect = match snapshot.limit(index).effect {
        Effect::Deny if prepared.queue.is_some() => "Queue",
        Effect::Deny => "Reject",
        Effect::Mark(_) => "Mark",
        Effect::Observe => "Shadow",
    };
    ExplainedLimit {
        policy: policy_name(policy),
        limit: prepared.name.clone(),
        effect: effect.to_owned(),
        result,
    }
}
