//! Finds the limits that match a request, and builds the key of each.

use std::net::IpAddr;

use http::Request;
use http_body::Body;
use sluice_config::RequestAttributes;
use sluice_config::charged::ChargedMarks;
use sluice_config::prepared::Identified;
use sluice_store::{KeyHash, MAX_COUNTERS, PlannedCounter};

use crate::limit::active::Effect;
use crate::limit::adaptive::Origin;
use crate::limit::index::LimitIndex;
use crate::limit::query::{Query, View};
use crate::limit::snapshot::Snapshot;

/// Index of the boosted rates of an elastic limit, which has no tiers.
const BOOSTED: u16 = 1;

impl Query {
    /// Matches a request against all policies of the snapshot. `request` returns what limits look at.
    #[inline]
    pub(crate) fn find<'r>(snapshot: &Snapshot, request: impl FnOnce() -> RequestAttributes<'r>) -> Self {
        Self::find_among(snapshot, View::Exchange, |_| true, request)
    }

    /// Matches a request against some of the policies, which `applies` tells by their positions.
    #[inline]
    pub(crate) fn find_among<'r>(
        snapshot: &Snapshot,
        view: View,
        applies: impl Fn(u16) -> bool,
        request: impl FnOnce() -> RequestAttributes<'r>,
    ) -> Self {
        let is_forwarded = view == View::Exchange;
        let mut query = Self { is_forwarded, ..Self::default() };
        if snapshot.policies.is_empty() {
            return query;
        }
        let attributes = request();
        let path = attributes.path_readings();
        let candidates = snapshot.candidates(&attributes, &path);
        let charged = if is_forwarded && snapshot.has_shared {
            ChargedMarks::of(attributes.headers, || snapshot.seconds())
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
                query.abandoned_for = query.abandoned_for.max(limit.abandoned_for);
                let mut index = LimitIndex { policy: p, limit: l as u16, rates: 0 };
                if !is_forwarded {
                    policy.prepared.note_asked();
                    let counts_body =
                        limit.settlement.as_ref().is_some_and(|settlement| settlement.counts_request_body);
                    if policy.prepared.limits[l].needs_exchange
                        || counts_body && attributes.body_bytes.is_none()
                    {
                        // Sidecars decide it, if they enforce the policy too.
                        let is_left = policy.prepared.is_shared || !limit.denies();
                        query.undecidable = query.undecidable.or((!is_left).then_some(index));
                        continue;
                    }
                }
                match (identified, &limit.effect) {
                    (Identified::Counted { key, rates: priority, .. }, _) if limit.adaptive.is_some() => {
                        query.adaptive.push((index, Origin { priority, client: key as u64 }));
                    }
                    // The service has counted the request, because the gateway before the pod has asked it.
                    (Identified::Counted { key, .. }, _)
                        if charged.take(secret, &policy.prepared.limits[l].scope, key, &snapshot.taken) => {}
                    (Identified::Counted { key, rates, cost }, effect) => {
                        index.rates = if limit.is_boosted() { BOOSTED } else { rates };
                        if let Some(settlement) = limit.settlement.as_ref().filter(|_| is_forwarded) {
                            query.settles = true;
                            query.counts_upload |=
                                settlement.counts_request_body && attributes.body_bytes != Some(0);
                        }
                        let plan = snapshot.rates(index).plan.clone();
                        let counter = PlannedCounter { limit: plan, key: KeyHash(key), cost };
                        let is_full = query.beside.len() == 2 * MAX_COUNTERS;
                        match effect {
                            Effect::Deny => query.ask(snapshot, index, counter),
                            Effect::Mark(_) if is_full => query.meets_too_many = true,
                            Effect::Observe if is_full => drop(limit.metrics.skipped.inc()),
                            Effect::Mark(_) | Effect::Observe => query.observe(snapshot, index, counter),
                        }
                    }
                    (Identified::Refused(refusal), Effect::Deny) => {
                        query.refused = query.refused.or(Some((index, refusal)));
                    }
                    (Identified::Refused(_), Effect::Mark(_) | Effect::Observe) => {
                        query.beside_refused.push(index);
                    }
                }
            }
        }
        query
    }
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
