//! The rate-limit status of a request.

use std::sync::Arc;

use sluice_limiter::Decision;
use sluice_store::{CheckResponse, KeyHash, Reservation};
use smallvec::SmallVec;

use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;

/// The state of a request's limits after its check. Response headers are made from it.
#[derive(Debug)]
pub(crate) struct RateLimitStatus {
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) limits: SmallVec<[LimitIndex; 2]>,
    pub(crate) response: CheckResponse,
    /// The charge to each counter.
    pub(crate) reservations: SmallVec<[Reservation; 2]>,
    /// The store's failure, as in `x-sluice-store-failure`, if local quota or `onStoreFailure` decided in its
    /// place.
    pub(crate) failure: Option<&'static str>,
    /// The keys of the limits, if the request is denied.
    pub(crate) denied_keys: SmallVec<[KeyHash; 1]>,
    /// Bit mask of the limits that neither the store nor local quota has counted, because the store failed.
    pub(crate) uncounted: u64,
}

impl RateLimitStatus {
    /// Iterates over the counted limits and the decisions of their rates.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (LimitIndex, &[Decision])> {
        self.counted_with_position().map(|(_, limit, decisions)| (limit, decisions))
    }

    /// Iterates over the limits that deny the request, with its keys.
    pub(crate) fn denials(&self) -> impl Iterator<Item = (LimitIndex, KeyHash)> {
        let denials = self
            .counted_with_position()
            .filter(|(_, _, decisions)| decisions.iter().any(|decision| !decision.admitted));
        denials.filter_map(|(n, limit, _)| Some((limit, *self.denied_keys.get(n)?)))
    }

    /// Iterates over the counted limits with their position in the check.
    pub(crate) fn counted_with_position(&self) -> impl Iterator<Item = (usize, LimitIndex, &[Decision])> {
        let each = decisions_of(&self.snapshot, &self.limits, &self.response);
        each.filter(|(n, ..)| self.uncounted & 1 << n == 0)
    }
}

/// Iterates over the limits of a check with their position and the decisions of their rates.
pub(crate) fn decisions_of<'a>(
    snapshot: &'a Snapshot,
    limits: &'a [LimitIndex],
    response: &'a CheckResponse,
) -> impl Iterator<Item = (usize, LimitIndex, &'a [Decision])> {
    let mut rest = &response.decisions[..];
    limits.iter().enumerate().map(move |(n, &limit)| {
        let rates = snapshot.rates(limit).plan.spec.rates.len().min(rest.len());
        let (own, others) = rest.split_at(rates);
        rest = others;
        (n, limit, own)
    })
}
