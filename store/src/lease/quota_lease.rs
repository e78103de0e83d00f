//! The lease of one key by this process. Pure: instants are microseconds of a clock of this process that
//! never goes back. Instants of the store's clock are only subtracted from each other.

use super::block::Block;
use super::demand::Demand;
use super::denial_pause::DenialPause;
use super::estimate::CounterEstimate;
use super::sizing::{
    BlockInputs, LEAST_GRADUAL_BLOCK, LEAST_WINDOW_BLOCK, block_size, is_worth_leasing, likely_most,
};
use crate::check::{CheckResponse, Decisions, KeyHash, LimitSpec};
use crate::plan::lease_terms::{ChargedWindow, LeaseTerms};

/// Interval at which an unused block is reviewed, in microseconds.
const REVIEW_INTERVAL: u64 = 1_000_000;

/// Time before the expiry of a block, in microseconds, after which a return would arrive too late.
const TOO_LATE_TO_RETURN: u64 = 2_000;

/// Next step for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum LeaseStep {
    /// Admit it from the block. If `acquire` is not 0, acquire that much in the background.
    Admit {
        /// Size of the next block.
        acquire: u64,
    },
    /// Deny it: the counter in the store is believed to be exhausted.
    Deny,
    /// Acquire a block of this size; the request waits for it.
    Acquire(u64),
    /// Wait for the block that is being acquired.
    Wait,
    /// Check this request alone in the store: a block is not worth it.
    CallStore,
}

/// Unused quota to return to the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct BlockReturn {
    pub(super) amount: u64,
    /// Instant of the store's clock that identifies the charge.
    pub(super) charged_at: u64,
}

/// A block of quota and all that is known about its counter.
#[derive(Debug)]
pub(super) struct QuotaLease {
    block: Block,
    /// Largest size of the next block.
    largest_next: u64,
    /// Whether a block is being acquired.
    acquiring: bool,
    demand: Demand,
    estimate: CounterEstimate,
    pause: DenialPause,
    /// Time of the store at which the counter was removed while a block was being acquired, which was charged before if it is not
    /// later; 0 for none.
    removed_at: u64,
    /// How often the counter was removed. What was reserved before is not put back.
    resets: u32,
    /// Quota that expired unused and has not been added to the metrics yet.
    pub(super) expired: u64,
}

impl QuotaLease {
    /// Returns a lease without quota. `holders` is the number of holders to assume until the store's
    /// responses show it.
    pub(super) fn new(now: u64, holders: u64) -> Self {
        Self {
            block: Block::default(),
            largest_next: 1,
            acquiring: false,
            demand: Demand::new(now),
            estimate: CounterEstimate::new(holders),
            pause: DenialPause::default(),
            removed_at: 0,
            resets: 0,
            expired: 0,
        }
    }

    /// Reports whether dropping the lease loses no quota.
    pub(super) fn is_idle(&self) -> bool {
        self.block.left() == 0 && !self.acquiring
    }

    pub(super) fn block(&self) -> &Block {
        &self.block
    }

    /// Decides the next step for a request.
    pub(super) fn request(&mut self, spec: &LimitSpec, terms: &LeaseTerms, now: u64, cost: u64) -> LeaseStep {
        self.demand.record(now, cost.max(1));
        self.retry(spec, terms, now, cost)
    }

    /// Decides the next step for a request that has waited for a block.
    pub(super) fn retry(&mut self, spec: &LimitSpec, terms: &LeaseTerms, now: u64, cost: u64) -> LeaseStep {
        self.expire_block(now);
        if self.block.left() >= cost.max(1) {
            self.block.remove(cost);
            let acquire = self.refill(spec, terms, now);
            self.acquiring |= acquire > 0;
            return LeaseStep::Admit { acquire };
        }
        if self.pause.covers(cost, now) {
            return match self.pause.probe_is_due(now) {
                false => LeaseStep::Deny,
                true if self.acquiring => LeaseStep::Wait,
                true => LeaseStep::CallStore,
            };
        }
        if self.acquiring {
            return LeaseStep::Wait;
        }
        let size = self.next_block(spec, terms, now);
        let least = if terms.refills_gradually { LEAST_GRADUAL_BLOCK } else { LEAST_WINDOW_BLOCK };
        if size < least || size < cost || cost == 0 {
            return LeaseStep::CallStore;
        }
        self.acquiring = true;
        LeaseStep::Acquire(size)
    }

    pub(super) fn resets(&self) -> u32 {
        self.resets
    }

    /// Puts back into the block what was reserved, after so many resets, for a request that was not admitted after all.
    pub(super) fn put_back(&mut self, now: u64, cost: u64, window_end: u64, resets: u32) {
        self.expire_block(now);
        // Rule: lease.forgets-reset.
        if resets == self.resets {
            self.block.put_back(cost, window_end, now);
        } else {
            self.expired += cost;
        }
    }

    /// Records the response to [`LeaseStep::Acquire`]: `granted` of `wanted`. The call was sent at `sent`.
    #[expect(clippy::too_many_arguments, reason = "a grant and its time")]
    pub(super) fn acquired(
        &mut self,
        spec: &LimitSpec,
        key: KeyHash,
        terms: &LeaseTerms,
        wanted: u64,
        granted: u64,
        response: &CheckResponse,
        sent: u64,
        now: u64,
    ) {
        self.acquiring = false;
        self.expire_block(now);
        self.record_response(spec, terms, granted, response, now);
        let removed_at = std::mem::take(&mut self.removed_at);
        if response.at <= removed_at {
            self.expired += granted;
        } else if granted > 0 {
            let window = ChargedWindow::of(spec, key, response.at, &response.decisions);
            self.expired += self.block.add(granted, response.at, window, sent);
            self.expire_block(now);
        }
        if granted < wanted {
            self.pause.begin(terms, self.estimate.share(), response, 1, granted == 0, now);
        } else {
            self.pause.end();
        }
    }

    /// Records the response to [`LeaseStep::CallStore`]. `decisions` are those of this limit in the response.
    pub(super) fn called(
        &mut self,
        spec: &LimitSpec,
        terms: &LeaseTerms,
        cost: u64,
        response: &CheckResponse,
        decisions: &[sluice_limiter::Decision],
        now: u64,
    ) {
        let own = CheckResponse { decisions: decisions.into(), ..response.clone() };
        self.record_response(spec, terms, if own.admitted { cost } else { 0 }, &own, now);
        if decisions.iter().any(|decision| !decision.admitted) {
            self.pause.begin(terms, self.estimate.share(), &own, cost.max(1), true, now);
        } else if own.admitted {
            self.pause.end();
        }
    }

    /// Records that a block could not be acquired.
    pub(super) fn acquisition_failed(&mut self) {
        (self.acquiring, self.removed_at) = (false, 0);
    }

    /// Removes quota that this holder will not use before the block expires. Returns it, and the time of the
    /// next review.
    pub(super) fn review(&mut self, terms: &LeaseTerms, now: u64) -> (Option<BlockReturn>, Option<u64>) {
        self.expire_block(now);
        if self.block.left() == 0 {
            return (None, None);
        }
        let usable_for = self.block.expires().saturating_sub(now);
        if usable_for < TOO_LATE_TO_RETURN {
            return (None, Some(self.block.expires()));
        }
        let demand = self.demand.per_microsecond(now, terms.demand_memory());
        let needed = likely_most(demand * usable_for as f64).ceil() as u64;
        let spare = self.block.left().saturating_sub(needed);
        let expires_soon = usable_for <= terms.longest_block / 8;
        let amount = if self.demand.is_quiet() {
            self.block.left()
        } else if spare > self.block.size() / 4 || (expires_soon && spare > 1) {
            spare
        } else {
            0
        };
        let next =
            now + if expires_soon { usable_for } else { (usable_for / 2).clamp(2_000, REVIEW_INTERVAL) };
        if amount == 0 {
            return (None, Some(next));
        }
        (Some(self.return_quota(amount)), (self.block.left() > 0).then_some(next))
    }

    /// Removes the whole block and returns it.
    pub(super) fn return_all(&mut self, now: u64) -> Option<BlockReturn> {
        self.expire_block(now);
        (self.block.left() > 0).then(|| self.return_quota(self.block.left()))
    }

    /// Ends the pause, because the counter was removed at this time of the store. Also forgets a block of which a part was
    /// charged to it, and a grant that is on its way.
    pub(super) fn forget(&mut self, removed_at: u64, now: u64) {
        self.resets = self.resets.wrapping_add(1);
        if self.acquiring {
            self.removed_at = self.removed_at.max(removed_at);
        }
        // Rule: lease.forgets-reset.
        if self.block.charged_since() <= removed_at {
            // The store has forgotten it too, so it is not returned.
            self.expired += self.return_all(now).map_or(0, |lost| lost.amount);
        }
        self.pause.end();
    }

    /// Estimates the decisions of a request that was decided without a call.
    pub(super) fn decisions(&self, spec: &LimitSpec, now: u64, admitted: bool) -> Decisions {
        let retry_after = self.pause.retry_after(now);
        self.estimate.decisions(spec, admitted, self.block.left(), retry_after, now)
    }

    fn return_quota(&mut self, amount: u64) -> BlockReturn {
        // Rule: lease.return-leaves-first.
        self.block.remove(amount);
        self.shrink_next_block();
        self.estimate.record_return(amount);
        BlockReturn { amount, charged_at: self.block.charged_at() }
    }

    fn expire_block(&mut self, now: u64) {
        if let Some(unused) = self.block.expire(now) {
            self.expired += unused;
            if unused * 2 > self.block.size() {
                self.shrink_next_block();
            }
        }
    }

    fn shrink_next_block(&mut self) {
        self.largest_next = (self.largest_next / 2).max(1);
    }

    fn record_response(
        &mut self,
        spec: &LimitSpec,
        terms: &LeaseTerms,
        charged: u64,
        response: &CheckResponse,
        now: u64,
    ) {
        self.estimate.record(spec, terms, charged, response, now);
        self.largest_next = self.largest_next.saturating_mul(2).min(terms.capacity);
    }

    /// Returns the size of the block to acquire in the background, or 0.
    fn refill(&mut self, spec: &LimitSpec, terms: &LeaseTerms, now: u64) -> u64 {
        let is_low = self.block.left() <= self.low_water_mark(terms, now);
        if !is_low || self.acquiring || self.pause.is_active(now) {
            return 0;
        }
        let size = self.next_block(spec, terms, now);
        let lasts = now + terms.longest_block / 32 < self.block.expires();
        if size >= LEAST_GRADUAL_BLOCK && lasts { size } else { 0 }
    }

    /// Returns the amount at which the block is renewed: enough for the next 4 ms, and a quarter of the
    /// block.
    fn low_water_mark(&mut self, terms: &LeaseTerms, now: u64) -> u64 {
        let soon = self.demand.per_microsecond(now, terms.demand_memory()) * 4_000.0;
        (self.block.size() / 4).max(soon as u64)
    }

    /// Returns the size of the block to acquire now.
    fn next_block(&mut self, spec: &LimitSpec, terms: &LeaseTerms, now: u64) -> u64 {
        let share = self.estimate.share();
        if !is_worth_leasing(terms, share) {
            return 0;
        }
        let expires = self.block.expires();
        let inputs = BlockInputs {
            share,
            available: self.estimate.available(spec, now),
            demand: self.demand.per_microsecond(now, terms.demand_memory()),
            usable_for: if expires > now { expires - now } else { terms.longest_block },
            in_hand: self.block.left(),
            largest: self.largest_next,
        };
        block_size(terms, &inputs)
    }
}

#[cfg(test)]
mod tests {
    use sluice_limiter::{Algorithm, Period, Rate, Requests};

    use super::*;
    use crate::check::{Counter, Records, decide};

    #[test]
    fn a_lease_forgets_all_that_was_charged_before_a_reset() {
        let (requests, period) = (Requests::new(100).unwrap(), Period::from_millis(60_000).unwrap());
        let rate = Rate::new(requests, period, Algorithm::FIXED_WINDOW).unwrap();
        let spec = std::sync::Arc::new(LimitSpec::new("n/p/l", vec![rate]));
        let (terms, key) = (LeaseTerms::of(&spec).unwrap(), KeyHash(7));
        let mut lease = QuotaLease::new(0, 1);
        let grant = |lease: &mut QuotaLease, at: u64| {
            let counter = Counter { limit: spec.clone(), key, cost: 5 };
            let response = decide(&[counter], &mut [Records::new()], 1_699_920_000_000_000 + at);
            lease.acquired(&spec, key, &terms, 5, 5, &response, at, at);
            response.at
        };
        let removed_at = grant(&mut lease, 10);
        grant(&mut lease, 20);
        assert_eq!(lease.block().left(), 10);
        let (window_end, resets) = (lease.block().window_end(), lease.resets());
        lease.block.remove(3);
        // A part of the block was charged before, and a grant is on its way.
        lease.acquiring = true;
        lease.forget(removed_at, 30);
        assert_eq!((lease.block().left(), lease.expired), (0, 7));
        grant(&mut lease, 5);
        assert_eq!((lease.block().left(), lease.expired), (0, 12));
        // Later ones are used, also if the clock of the store has gone back.
        grant(&mut lease, 8);
        assert_eq!(lease.block().left(), 5);
        // What was reserved before is not put back, and what is reserved now is.
        lease.put_back(31, 3, window_end, resets);
        assert_eq!((lease.block().left(), lease.expired), (5, 15));
        lease.block.remove(2);
        lease.put_back(31, 2, window_end, lease.resets());
        assert_eq!(lease.block().left(), 5);
    }
}
