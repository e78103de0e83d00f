//! Finds the limits that match a request, and builds the key of each.

use std::net::IpAddr;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use http::Request;
use http_body::Body;
use sluice_config::RequestAttributes;
use sluice_config::charged::ChargedMarks;
use sluice_config::prepared::{Identified, Refusal};
use sluice_store::{KeyHash, MAX_COUNTERS, PlannedCounter};
use smallvec::SmallVec;

use crate::limit::active::Effect;
use crate::limit::adaptive::Origin;
use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;

/// Index of the boosted rates of an elastic limit, which has no tiers.
const BOOSTED: u16 = 1;

/// The limits that match a request.
#[derive(Debug, Default)]
pub(crate) struct MatchedLimits {
    /// Enforced limits, in the order of `counters`.
    pub(crate) enforced: SmallVec<[LimitIndex; 2]>,
    /// The counters of the enforced limits, checked together.
    pub(crate) counters: SmallVec<[PlannedCounter; 2]>,
    /// Whether any of the counters holds slots.
    pub(crate) has_slots: bool,
    /// Whether the request may wait in the queue of a limit.
    pub(crate) has_queue: bool,
    /// Whether the outcome of the request corrects any charge.
    pub(crate) settles: bool,
    /// Whether the body is counted as it passes, because its length is a part of a cost and is not known.
    pub(crate) counts_upload: bool,
    /// Longest time for which slots and permits are held when the client has left.
    pub(crate) abandoned_for: Duration,
    /// Adaptive limits, enforced or in Shadow, with the origin of the request.
    pub(crate) adaptive: SmallVec<[(LimitIndex, Origin); 1]>,
    /// Limits that deny nothing: those in Shadow and those that mark. Each is checked alone, because its denial must not
    /// keep the others from counting.
    pub(crate) beside: SmallVec<[(LimitIndex, PlannedCounter); 1]>,
    /// Those of them that would deny the request without counting it.
    pub(crate) beside_refused: SmallVec<[LimitIndex; 1]>,
    /// The first enforced limit that denies the request without counting it, and why.
    pub(crate) refused: Option<(LimitIndex, Refusal)>,
    /// Whether the request meets more enforced limits than one check holds. It is refused: a client must not choose which
    /// limits are left out.
    pub(crate) meets_too_many: bool,
}

impl MatchedLimits {
    /// Matches a request against all policies of the snapshot. `request` returns what limits look at.
    #[inline]
    pub(crate) fn find<'r>(snapshot: &Snapshot, request: impl FnOnce() -> RequestAttributes<'r>) -> Self {
        Self::find_among(snapshot, |_| true, request)
    }

    /// Matches a request against some of the policies, which `applies` tells by their positions.
    #[inline]
    pub(crate) fn find_among<'r>(
        snapshot: &Snapshot,
        applies: impl Fn(u16) -> bool,
        request: impl FnOnce() -> RequestAttributes<'r>,
    ) -> Self {
        let mut matched = Self::default();
        if snapshot.policies.is_empty() {
            return matched;
        }
        let attributes = request();
        let path = attributes.path_readings();
        let candidates = snapshot.candidates(&attributes, &path);
        let charged = if snapshot.has_described() {
            ChargedMarks::of(attributes.headers, unix_seconds)
        } else {
            ChargedMarks::default()
        };
        for of_policy in candidates.chunk_by(|(a, _), (b, _)| a == b) {
            let p = of_policy[0].0;
            if !applies(p) {
                continue;
            }
            let policy = &snapshot.policies[usize::from(p)];
            let limits = of_policy.iter().map(|(_, limit)| usize::from(*limit));
            let secret = snapshot.secret(policy);
            for (l, identified) in policy.prepared.identify(limits, &attributes, &path, secret) {
                let limit = &policy.limits[l];
                matched.abandoned_for = matched.abandoned_for.max(limit.abandoned_for);
                let mut index = LimitIndex { policy: p, limit: l as u16, rates: 0 };
                match (identified, &limit.effect) {
                    (Identified::Counted { key, rates: priority, .. }, _) if limit.adaptive.is_some() => {
                        matched.adaptive.push((index, Origin { priority, client: key as u64 }));
                    }
                    // The service has counted the request, because the gateway before the pod has asked it.
                    (Identified::Counted { key, .. }, _)
                        if charged.take(secret, &policy.prepared.limits[l].scope, key, &snapshot.taken) => {}
                    (Identified::Counted { key, rates, cost }, effect) => {
                        index.rates = if limit.is_boosted() { BOOSTED } else { rates };
                        if let Some(settlement) = &limit.settlement {
                            matched.settles = true;
                            matched.counts_upload |=
                                settlement.counts_request_body && attributes.body_bytes != Some(0);
                        }
                        let plan = snapshot.rates(index).plan.clone();
                        let counter = PlannedCounter { limit: plan, key: KeyHash(key), cost };
                        match effect {
                            Effect::Deny if matched.counters.len() == MAX_COUNTERS => {
                                matched.meets_too_many = true;
                            }
                            Effect::Deny => {
                                matched.has_slots |= limit.concurrency.is_some();
                                matched.has_queue |= limit.queue.is_some();
                                matched.enforced.push(index);
                                matched.counters.push(counter);
                            }
                            Effect::Mark(_) if matched.beside.len() == 2 * MAX_COUNTERS => {
                                matched.meets_too_many = true;
                            }
                            Effect::Observe if matched.beside.len() == 2 * MAX_COUNTERS => {
                                limit.metrics.skipped.inc();
                            }
                            Effect::Mark(_) | Effect::Observe => matched.beside.push((index, counter)),
                        }
                    }
                    (Identified::Refused(refusal), Effect::Deny) => {
                        matched.refused = matched.refused.or(Some((index, refusal)));
                    }
                    (Identified::Refused(_), Effect::Mark(_) | Effect::Observe) => {
                        matched.beside_refused.push(index);
                    }
                }
            }
        }
        matched
    }
}

/// Returns the time in seconds since the Unix epoch.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs()
}

/// Returns what limits look at in an HTTP request. `proxied` is the client that the peer has reported in the PROXY protocol.
pub fn attributes<B: Body>(
    request: &Request<B>,
    peer: IpAddr,
    proxied: Option<IpAddr>,
) -> RequestAttributes<'_> {
    let body = request.body();
    let body_bytes = if body.is_end_stream() { Some(0) } else { body.size_hint().exact() };
    let (method, uri, headers) = (request.method(), request.uri(), request.headers());
    let mut attributes = RequestAttributes::new(method, uri, headers, peer);
    attributes.proxied = proxied;
    attributes.body_bytes = body_bytes;
    attributes
}
