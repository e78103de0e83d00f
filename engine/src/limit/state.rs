//! The state of counters after their store has answered.

use sluice_limiter::Decision;
use sluice_store::{CheckOutcome, OnStoreFailure, Reservation, Source, StoreError};
use smallvec::SmallVec;

use crate::limit::index::LimitIndex;
use crate::limit::query::Part;

/// The states of the parts of a query.
pub(crate) type States = SmallVec<[State; 1]>;

/// The state of a part.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) part: Part,
    pub(crate) checked: Checked,
}

/// The answer of a store.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) outcome: CheckOutcome,
    /// Bit mask of the counters that neither the store nor local quota has counted: the store failed, and the
    /// `onStoreFailure` of their limits is `Allow`.
    pub(crate) uncounted: u64,
}

impl State {
    /// Iterates over the limits with their position in the part and the decisions of their rates.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = (usize, LimitIndex, &[Decision])> {
        let mut rest = &self.checked.outcome.response.decisions[..];
        self.part.iter().enumerate().map(move |(n, (limit, counter))| {
            let rates = counter.limit.spec.rates.len().min(rest.len());
            let (own, others) = rest.split_at(rates);
            rest = others;
            (n, limit, own)
        })
    }

    /// Iterates over those of them that were counted.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (usize, LimitIndex, &[Decision])> {
        self.decisions().filter(|(n, ..)| self.checked.is_counted(*n))
    }
}

impl Checked {
    pub(crate) fn new(part: &Part, outcome: CheckOutcome) -> Self {
        let mut uncounted = 0;
        if outcome.failure.is_some() {
            for (n, ((_, counter), reservation)) in part.iter().zip(&outcome.reservations).enumerate() {
                let admits = counter.limit.on_failure == OnStoreFailure::Allow;
                uncounted |= u64::from(admits && *reservation == Reservation::Nothing) << n;
            }
        }
        Self { outcome, uncounted }
    }

    /// Reports whether the store or local quota has counted in a counter.
    pub(crate) fn is_counted(&self, n: usize) -> bool {
        self.uncounted & 1 << n == 0
    }

    /// Notes that what was charged is given back, because another part is denied.
    pub(crate) fn give_back(&mut self, part: &Part) {
        let mut decisions = self.outcome.response.decisions.iter_mut();
        for ((_, counter), charged) in part.iter().zip(&self.outcome.reservations) {
            let cost = if *charged == Reservation::Nothing { 0 } else { counter.cost };
            for decision in decisions.by_ref().take(counter.limit.spec.rates.len()) {
                decision.remaining =
                    decision.remaining.saturating_add(cost).min(decision.limit.max(decision.remaining));
            }
        }
        self.outcome.reservations.fill(Reservation::Nothing);
    }

    /// Returns where the charge to a counter went.
    pub(crate) fn charged(&self, n: usize) -> Reservation {
        self.outcome.reservations.get(n).copied().unwrap_or(Reservation::Nothing)
    }

    /// Reports whether something was reserved in a counter of the part, and is in its ledger.
    pub(crate) fn is_listed(&self, part: &Part, n: usize) -> bool {
        let ledger = part.reserved.as_ref().and_then(|reserved| reserved.1.iter().position(|&of| of == n));
        let charged = ledger.and_then(|ledger| self.outcome.reservations.get(part.limits.len() + ledger));
        matches!(charged, Some(Reservation::Store(_)))
    }

    /// Returns the store's failure as in `x-sluice-store-failure`, if the store was called and failed.
    pub(crate) fn failure(&self) -> Option<&'static str> {
        self.outcome.failure.as_ref().map(StoreError::as_str)
    }

    /// Reports whether local quota decided in place of a store that failed.
    pub(crate) fn by_local_quota(&self) -> bool {
        self.outcome.failure.is_some() && self.outcome.source == Source::LocalQuota
    }
}

/// Reports whether any rate of a limit denies.
pub(crate) fn denies(decisions: &[Decision]) -> bool {
    decisions.iter().any(|decision| !decision.admitted)
}
