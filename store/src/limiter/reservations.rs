//! The reservations of one check, which are undone unless the check is admitted.

use smallvec::SmallVec;

use super::core::LimiterCore;
use crate::check::{CheckResponse, Decisions};
use crate::failure::StoreError;
use crate::key_usage::KeyUsages;
use crate::lease::LeasedQuota;
use crate::limiter::outcome::{CheckOutcome, Reservation, Source};
use crate::plan::{OnStoreFailure, PlannedCounter};

/// The state of one counter of a check.
#[derive(Debug)]
pub(super) enum CounterState {
    /// Not decided yet.
    Open,
    /// Admitted from a block of leased quota.
    Leased(LeasedQuota),
    /// Admitted by local quota at `charged_at` of the store's clock.
    Local { decisions: Decisions, charged_at: u64 },
}

/// The counters of one check and what was reserved for them. Dropping it undoes the reservations, unless
/// [`PendingReservations::finish`] admitted the check: a request can be cancelled at every await.
pub(super) struct PendingReservations<'a, S> {
    core: &'a LimiterCore<S>,
    counters: &'a [PlannedCounter],
    states: SmallVec<[CounterState; 2]>,
    is_kept: bool,
}

impl<'a, S> PendingReservations<'a, S> {
    pub(super) fn new(core: &'a LimiterCore<S>, counters: &'a [PlannedCounter]) -> Self {
        let states = counters.iter().map(|_| CounterState::Open).collect();
        Self { core, counters, states, is_kept: false }
    }

    pub(super) fn counters(&self) -> &'a [PlannedCounter] {
        self.counters
    }

    /// Records that counter `n` is reserved.
    pub(super) fn reserve(&mut self, n: usize, state: CounterState) {
        self.states[n] = state;
    }

    /// Returns the counters that are not decided yet.
    pub(super) fn open(&self) -> impl Iterator<Item = &'a PlannedCounter> {
        let states = self.counters.iter().zip(&self.states);
        states.filter(|(_, state)| matches!(state, CounterState::Open)).map(|(counter, _)| counter)
    }

    pub(super) fn uses_local_quota(&self) -> bool {
        self.states.iter().any(|state| matches!(state, CounterState::Local { .. }))
    }

    /// Ends the check. `response` decides the open counters: all of them, in their order. The reservations
    /// are kept if it admits.
    pub(super) fn finish(
        mut self,
        response: &CheckResponse,
        source: Source,
        failure: Option<StoreError>,
    ) -> CheckOutcome {
        let (admitted, at) = (response.admitted, response.at);
        let mut open_decisions = &response.decisions[..];
        let (mut decisions, mut open) = (Decisions::new(), SmallVec::<[usize; 2]>::new());
        let mut reservations = SmallVec::new();
        for (n, (counter, state)) in self.counters.iter().zip(&self.states).enumerate() {
            let reservation = match state {
                CounterState::Leased(quota) => {
                    decisions.extend_from_slice(&quota.decisions);
                    Reservation::Store(quota.charged_at)
                }
                CounterState::Local { decisions: local, charged_at } => {
                    decisions.extend_from_slice(local);
                    Reservation::Local(*charged_at)
                }
                CounterState::Open => {
                    decisions.extend_from_slice(counter.limit.split_decisions(&mut open_decisions));
                    let is_overflowed = response.key_usages.is_overflowed(open.len());
                    open.push(n);
                    match (&failure, counter.limit.on_failure) {
                        (None, _) if is_overflowed => Reservation::Overflow(at),
                        (None, _) => Reservation::Store(at),
                        (Some(_), OnStoreFailure::Share) => Reservation::Local(at),
                        (Some(_), _) => Reservation::Nothing,
                    }
                }
            };
            reservations.push(if admitted { reservation } else { Reservation::Nothing });
        }
        self.is_kept = admitted;
        let mut key_usages = KeyUsages::default();
        key_usages.extend(&response.key_usages, &open);
        let response = CheckResponse { key_usages, ..CheckResponse::new(admitted, at, decisions) };
        CheckOutcome { response, reservations, source, failure }
    }
}

impl<S> Drop for PendingReservations<'_, S> {
    fn drop(&mut self) {
        if self.is_kept {
            return;
        }
        let now = self.core.time.now();
        for (state, counter) in self.states.iter().zip(self.counters) {
            match state {
                CounterState::Leased(quota) => self.core.leases.put_back(counter, quota, now),
                CounterState::Local { charged_at, .. } => {
                    let delta = -i64::try_from(counter.cost).unwrap_or(i64::MAX);
                    let at = self.core.time.store_time_at(now);
                    self.core.local_quota.correct(counter, *charged_at, delta, at);
                }
                CounterState::Open => {}
            }
        }
    }
}
