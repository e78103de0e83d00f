//! An estimate of a counter in the store, from its last response. Other holders charge the counter too, so
//! every number here can be out of date.

use sluice_limiter::Decision;

use super::demand::UsageShare;
use crate::check::{CheckResponse, Decisions, LimitSpec};
use crate::plan::lease_terms::LeaseTerms;

/// The last response of the store about a counter, and the share of its usage that belongs to this holder.
#[derive(Debug)]
pub(super) struct CounterEstimate {
    share: UsageShare,
    last: Option<LastResponse>,
}

#[derive(Debug)]
struct LastResponse {
    decisions: Decisions,
    /// Time at which it arrived, by this process's clock.
    received: u64,
    /// Time at which the store decided, by its own clock.
    at: u64,
}

impl CounterEstimate {
    /// Starts without a response, assuming this many active holders.
    pub(super) fn new(holders: u64) -> Self {
        Self { share: UsageShare::among(holders), last: None }
    }

    /// Returns this holder's share of the usage, in (0, 1].
    pub(super) fn share(&self) -> f64 {
        self.share.get()
    }

    /// Records a response to a call that charged `charged` for this holder.
    pub(super) fn record(
        &mut self,
        spec: &LimitSpec,
        terms: &LeaseTerms,
        charged: u64,
        response: &CheckResponse,
        now: u64,
    ) {
        let n = terms.measured_rate;
        let before = self.last.as_ref().and_then(|last| Some((last, last.decisions.get(n)?)));
        if let (Some(rate), Some(decision), Some((last, before))) =
            (spec.rates.get(n), response.decisions.get(n), before)
        {
            let passed = response.at.saturating_sub(last.at);
            let still_used = rate.used_after(before) as f64 - rate.freed_after(before, passed);
            let growth = (rate.used_after(decision) as f64 - still_used).max(0.0);
            self.share.observe(charged, growth, terms.capacity);
        }
        let decisions = response.decisions.clone();
        self.last = Some(LastResponse { decisions, received: now, at: response.at });
    }

    /// Records that this holder returns quota to the store.
    pub(super) fn record_return(&mut self, amount: u64) {
        for decision in self.last.iter_mut().flat_map(|last| &mut last.decisions) {
            decision.remaining = (decision.remaining + amount).min(decision.limit);
        }
    }

    /// Returns the quota left in the store: that of the rate with the least left.
    pub(super) fn available(&self, spec: &LimitSpec, now: u64) -> f64 {
        let passed = self.last.as_ref().map_or(0, |last| now.saturating_sub(last.received));
        let available = spec.rates.iter().enumerate().map(|(n, rate)| {
            let decision = self.last.as_ref().and_then(|last| last.decisions.get(n));
            let capacity = rate.capacity() as f64;
            decision.map_or(capacity, |decision| {
                (decision.remaining as f64 + rate.freed_after(decision, passed)).min(capacity)
            })
        });
        available.fold(f64::INFINITY, f64::min)
    }

    /// Returns one decision per rate for a request that was decided without a call, with `in_hand` left in
    /// the block.
    pub(super) fn decisions(
        &self,
        spec: &LimitSpec,
        admitted: bool,
        in_hand: u64,
        retry_after: u64,
        now: u64,
    ) -> Decisions {
        let is_exhausted = |decision: &Decision| decision.remaining == 0;
        let culprit_unknown = self.last.as_ref().is_none_or(|last| !last.decisions.iter().any(is_exhausted));
        let decisions = spec.rates.iter().enumerate().map(|(n, rate)| {
            let last = self.last.as_ref().and_then(|last| Some((last, last.decisions.get(n)?)));
            let capacity = rate.capacity();
            let (remaining, reset) = last.map_or((capacity, 0), |(last, decision)| {
                let passed = now.saturating_sub(last.received);
                (decision.remaining, decision.reset.saturating_sub(passed))
            });
            let denies = !admitted && (culprit_unknown || remaining == 0);
            Decision {
                admitted: !denies,
                limit: rate.requests.get(),
                period: rate.period.millis(),
                remaining: if denies { 0 } else { (remaining + in_hand).min(capacity) },
                reset,
                retry_after: denies.then_some(retry_after),
                delay: 0,
            }
        });
        decisions.collect()
    }
}
