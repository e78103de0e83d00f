//! The page `/explain`: which limits a request would meet, as which client, and why not the others. Nothing is counted.

use std::net::{IpAddr, Ipv4Addr};

use bytes::Bytes;
use futures::future::join_all;
use http::header::HOST;
use http::{HeaderMap, Request};
use http_body_util::Empty;
use sluice_config::client_pages::{CounterState, ExplainQuestion, ExplainedLimit, Explanation, LimitResult};
use sluice_config::path;
use sluice_config::prepared::Explained;
use sluice_store::{KeyHash, MAX_COUNTERS};

use super::counter_state;
use crate::answer::Refused;
use crate::limit::active::{ActivePolicy, Effect};
use crate::limit::index::LimitIndex;
use crate::limit::matching::attributes;
use crate::limit::snapshot::Snapshot;

/// Makes a request what the door makes of it, or returns why the door refuses it.
pub type Validate = fn(&mut Request<Empty<Bytes>>) -> Result<Option<Box<HeaderMap>>, &'static str>;

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
    if !headers.iter().any(|(name, _)| name.eq_ignore_ascii_case("host")) {
        request = request.header(HOST, "localhost");
    }
    for (name, value) in headers {
        request = request.header(name, value);
    }
    let request =
        request.body(Empty::new()).map_err(|error| format!("no such request can be sent: {error}"))?;
    Ok((request, peer.unwrap_or(IpAddr::V4(Ipv4Addr::LOCALHOST))))
}

/// Explains what the limits of a snapshot do about a request.
pub(super) async fn explain(
    snapshot: &Snapshot,
    question: &ExplainQuestion,
    validate: Validate,
) -> Result<Explanation, String> {
    let (mut request, peer) = request(question)?;
    let addresses = match validate(&mut request) {
        Err(refused) => Err(refused),
        Ok(_) if snapshot.denies_all => Err(Refused::NoPolicies.detail()),
        Ok(_) if snapshot.rejects_ambiguous_paths && path::is_ambiguous(request.uri().path()) => {
            Err(Refused::AmbiguousPath.detail())
        }
        Ok(addresses) => Ok(addresses),
    };
    let addresses = match addresses {
        Ok(addresses) => addresses,
        Err(refused) => return Ok(Explanation { refused: Some(refused.to_owned()), limits: Vec::new() }),
    };
    let mut attributes = attributes(&request, peer, None).with_addresses(addresses.as_deref());
    attributes.counts_errors = false;
    let readings = attributes.path_readings();
    let (mut read, mut enforced) = (0, 0);
    let mut limits = Vec::new();
    for (p, policy) in (0..).zip(&*snapshot.policies) {
        let secret = snapshot.secret(policy);
        for (l, prepared) in (0..).zip(&policy.prepared.limits) {
            let index = LimitIndex { policy: p, limit: l, rates: 0 };
            let counted = match policy.prepared.explain(prepared, &attributes, &readings, secret) {
                Explained::Counts { key, rates, cost, nobody } => {
                    let active = snapshot.limit(index);
                    enforced +=
                        usize::from(matches!(active.effect, Effect::Deny) && active.adaptive.is_none());
                    read += 1;
                    let index = LimitIndex { rates: if active.is_boosted() { 1 } else { rates }, ..index };
                    let describe =
                        || policy.prepared.describe_client(usize::from(l), &attributes).to_string();
                    let client = nobody.unwrap_or_else(describe);
                    Ok((index, KeyHash(key), cost, client, read <= MAX_READ))
                }
                Explained::Denies(reason) => Err(LimitResult::Denies { reason }),
                Explained::DoesNotApply(reason) => Err(LimitResult::DoesNotApply { reason }),
            };
            limits.push(explained(snapshot, policy, index, counted));
        }
    }
    let too_many = (enforced > MAX_COUNTERS).then(|| Refused::TooManyLimits.detail().to_owned());
    Ok(Explanation { refused: too_many, limits: join_all(limits).await })
}

/// A limit that counts the request: its rates, the client, the cost, the client in words, and whether its counter is read.
type Counted = (LimitIndex, KeyHash, u64, String, bool);

async fn explained(
    snapshot: &Snapshot,
    policy: &ActivePolicy,
    index: LimitIndex,
    counted: Result<Counted, LimitResult>,
) -> ExplainedLimit {
    let prepared = &policy.prepared.limits[usize::from(index.limit)];
    let result = match counted {
        Err(result) => result,
        Ok((index, key, cost, client, is_read)) => LimitResult::Counts {
            key: key.to_string(),
            client,
            exception: prepared.exception(index.rates),
            cost,
            state: if is_read {
                counter_state::read(snapshot, index, key).await
            } else {
                CounterState::Unknown(format!("only the counters of the first {MAX_READ} limits are read"))
            },
        },
    };
    let effect = prepared.effect_name().to_owned();
    ExplainedLimit {
        policy: policy.prepared.qualified_name(),
        limit: prepared.name.clone(),
        effect,
        needs_exchange: prepared.needs_exchange,
        result,
    }
}
