//! One check, from top to bottom: a remembered denial, then leased and local quota, then the store, and local
//! quota or `onStoreFailure` if the store does not answer. Every counter is charged, or none: the reservations of a check are undone unless
//! it is admitted. With the options of a limiter, the result of a check, and the metrics.

use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt as _;
use sluice_limiter::Decision;
use smallvec::SmallVec;
use tokio::time::{Instant, timeout_at};

use super::core::LimiterCore;
use crate::check::{CheckRequest, CheckResponse, Decisions};
use crate::failure::{StoreError, StoreHealth};
use crate::key_usage::KeyUsages;
use crate::lease::{LeaseMetrics, LeaseOutcome, LeasedQuota};
use crate::local::LocalQuotaMetrics;
use crate::plan::{LeaseTerms, OnStoreFailure, PlannedCounter, check_id};
use crate::store::Store;

/// Bounds of a limiter's waiting time and memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LimiterOptions {
    /// Longest time that a request waits for the store.
    pub latency_budget: Duration,
    /// Number of keys with quota leases, of about 500 bytes each. Other keys cost a call per request.
    pub leased_keys: usize,
    /// Number of remembered denials, of about 600 bytes each.
    pub remembered_denials: usize,
    /// Number of keys that are counted locally while the store does not answer, of about 500 bytes each.
    /// Beyond it, the new keys of a limit share one counter.
    pub local_quota_keys: usize,
    /// Number of keys whose last usage in the store is kept, of 80 bytes each.
    pub last_known_keys: usize,
}

impl Default for LimiterOptions {
    fn default() -> Self {
        Self {
            latency_budget: Duration::from_millis(50),
            leased_keys: 8_192,
            remembered_denials: 2_048,
            local_quota_keys: 65_536,
            last_known_keys: 16_384,
        }
    }
}

/// The part of a limiter that decided a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Source {
    /// The store, at least in part.
    Store,
    /// Blocks of leased quota.
    Lease,
    /// A remembered denial of the store.
    DenialCache,
    /// Local quota, at least in part.
    LocalQuota,
    /// `onStoreFailure: Allow`: the store did not answer, and the limits admit in that case.
    FailOpen,
}

/// The charge to one counter of a request. It is passed back to settle the request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reservation {
    /// Charged in the store at this instant of its clock, in microseconds.
    Store(u64),
    /// Charged in the store at this instant of its clock, in microseconds, to the counter that new keys share beyond the
    /// limit's maximum number of keys.
    Overflow(u64),
    /// Charged to local quota at this instant of the store's clock as estimated here, in microseconds.
    Local(u64),
    /// Not charged.
    Nothing,
}

/// The result of a check.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CheckOutcome {
    /// The decisions. Numbers that do not come from the store are estimates.
    pub response: CheckResponse,
    /// The charge to each counter. All are `Nothing` if the request is denied.
    pub reservations: SmallVec<[Reservation; 2]>,
    /// The part of the limiter that decided the check.
    pub source: Source,
    /// Error of the store, if it should have decided and did not answer.
    pub failure: Option<StoreError>,
}

/// Counts since the start of a limiter.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LimiterMetrics {
    /// Quota leases.
    pub leases: LeaseMetrics,
    /// Local quota.
    pub local_quota: LocalQuotaMetrics,
    /// Checks denied by a remembered denial.
    pub remembered_denials: u64,
    /// Counters that the store has lost before they expired.
    pub lost_counters: u64,
}

/// Number of times that a request tries to reserve leased quota before it is checked in the store.
const MAX_ATTEMPTS: usize = 4;

impl<S: Store> LimiterCore<S> {
    /// Decides a check in a store in this process, which is never away: nothing is remembered, leased or counted elsewhere.
    pub(super) async fn check_in_process(
        &self,
        counters: &[PlannedCounter],
    ) -> Result<CheckOutcome, StoreError> {
        let response = self.store.check(counters.iter().map(PlannedCounter::counter).collect()).await?;
        let charge = |n| match (response.admitted, response.key_usages.is_overflowed(n)) {
            (false, _) => Reservation::Nothing,
            (true, false) => Reservation::Store(response.at),
            (true, true) => Reservation::Overflow(response.at),
        };
        let reservations = (0..counters.len()).map(charge).collect();
        Ok(CheckOutcome { response, reservations, source: Source::Store, failure: None })
    }

    pub(super) async fn check(
        self: &Arc<Self>,
        counters: &[PlannedCounter],
        budget: Duration,
    ) -> Result<CheckOutcome, StoreError> {
        let can_be_remembered = counters.iter().all(|counter| counter.limit.denials_can_be_remembered);
        let denial_id = can_be_remembered.then(|| check_id(counters));
        let now = self.time.now();
        if let Some(denial) = denial_id.and_then(|id| self.denials.get(id, now, self.time.store_time_at(now)))
        {
            return Ok(denied(denial, counters.len(), Source::DenialCache));
        }

        let deadline = Instant::now() + self.latency_budget.min(budget);
        let mut reservations = PendingReservations::new(self, counters);
        match self.reserve(&mut reservations, deadline).await {
            Ok(None) => {}
            Ok(Some(denied)) => return Ok(denied),
            Err(failure) => return self.check_without_store(reservations, failure),
        }

        if reservations.open().next().is_none() {
            let source = if reservations.uses_local_quota() { Source::LocalQuota } else { Source::Lease };
            return Ok(reservations.finish(&admitted_at(self.time.store_now()), source, None));
        }
        match self.check_store(&reservations, denial_id, deadline).await {
            Ok(response) => Ok(reservations.finish(&response, Source::Store, None)),
            Err(failure) => self.check_without_store(reservations, failure),
        }
    }

    /// Reserves what needs no call: quota from leased blocks, and limits that are only counted locally.
    /// Returns the outcome if one of them denies.
    async fn reserve(
        self: &Arc<Self>,
        reservations: &mut PendingReservations<'_, S>,
        deadline: Instant,
    ) -> Result<Option<CheckOutcome>, StoreError> {
        let counters = reservations.counters();
        let is_failing = matches!(self.store.health(), StoreHealth::Failing(_));
        if !is_failing && self.local_quota.pending() > 0 {
            // Rule: share.flushed-before-check.
            // The local usage must be in the store before the store decides.
            within(deadline, self.flush_before_check(counters)).await?;
        }
        for (n, counter) in counters.iter().enumerate() {
            if counter.limit.consistency.is_local() {
                let at = self.time.store_now();
                let CheckResponse { admitted, decisions, .. } = self.local_quota.check(&[counter], at);
                if !admitted {
                    return Ok(Some(self.denied_by(n, &decisions, counters, Source::LocalQuota)));
                }
                reservations.reserve(n, CounterState::Local { decisions, charged_at: at });
            }
            if let Some(terms) = &counter.limit.lease_terms {
                match self.reserve_leased(counter, terms, deadline).await? {
                    LeaseOutcome::Reserved(quota) => {
                        reservations.reserve(n, CounterState::Leased(quota));
                    }
                    LeaseOutcome::Denied(decisions) => {
                        return Ok(Some(self.denied_by(n, &decisions, counters, Source::Lease)));
                    }
                    LeaseOutcome::CallStore | LeaseOutcome::Wait(_) => {}
                }
            }
        }
        Ok(None)
    }

    /// Reserves leased quota, and waits for a block if needed. Never returns [`LeaseOutcome::Wait`].
    async fn reserve_leased(
        self: &Arc<Self>,
        counter: &PlannedCounter,
        terms: &LeaseTerms,
        deadline: Instant,
    ) -> Result<LeaseOutcome, StoreError> {
        for attempt in 0..MAX_ATTEMPTS {
            let (reservation, acquisition) =
                self.leases.reserve(counter, terms, self.time.now(), attempt > 0);
            if let Some(acquisition) = acquisition {
                self.acquire(acquisition);
            }
            match reservation {
                LeaseOutcome::Wait(call) => within(deadline, call.wait()).await?,
                decided => return Ok(decided),
            }
        }
        Ok(LeaseOutcome::CallStore)
    }

    /// Checks the open counters in the store, and records what the response reveals about them.
    async fn check_store(
        &self,
        reservations: &PendingReservations<'_, S>,
        denial_id: Option<u128>,
        deadline: Instant,
    ) -> Result<CheckResponse, StoreError> {
        let check: CheckRequest = reservations.open().map(PlannedCounter::counter).collect();
        let sent = self.time.now();
        let response = within(deadline, self.store.check(check)).await?;
        let now = self.time.now();
        self.record_time(response.at, now);
        // A denial by an overflow counter ends when the key gets a counter of its own, so it is not remembered.
        if let Some(id) = denial_id.filter(|_| !response.key_usages.any_overflowed()) {
            self.denials.put(id, &response, sent, now);
        }
        let mut decisions = &response.decisions[..];
        for (n, counter) in reservations.open().enumerate() {
            let own = counter.limit.split_decisions(&mut decisions);
            if response.key_usages.is_overflowed(n) {
                // Local quota and leases would take the usage of many keys for that of this one.
                continue;
            }
            // Rule: share.keeps-last-known.
            self.record_usage(counter, (n, own), &response, now);
            if let Some(terms) = &counter.limit.lease_terms {
                self.leases.called(counter, terms, &response, own, now);
            }
        }
        Ok(response)
    }

    /// Decides the open counters by `onStoreFailure`.
    fn check_without_store(
        &self,
        reservations: PendingReservations<'_, S>,
        failure: StoreError,
    ) -> Result<CheckOutcome, StoreError> {
        if reservations.open().any(|counter| counter.limit.on_failure == OnStoreFailure::Deny) {
            return Err(failure);
        }
        let is_local = |counter: &PlannedCounter| counter.limit.on_failure == OnStoreFailure::Share;
        let local: SmallVec<[&PlannedCounter; 2]> =
            reservations.open().filter(|counter| is_local(counter)).collect();
        let source = if local.is_empty() { Source::FailOpen } else { Source::LocalQuota };
        let local_response = self.local_quota.check(&local, self.time.store_now());
        let mut local_decisions = &local_response.decisions[..];
        let mut decisions = Decisions::new();
        for counter in reservations.open() {
            if is_local(counter) {
                decisions.extend_from_slice(counter.limit.split_decisions(&mut local_decisions));
            } else {
                decisions.extend(self.local_quota.unchecked_decisions(counter));
            }
        }
        let response = CheckResponse { decisions, ..local_response };
        Ok(reservations.finish(&response, source, Some(failure)))
    }

    /// Returns the outcome of a check that counter `n` denies. The others were not checked.
    fn denied_by(
        &self,
        n: usize,
        own: &[Decision],
        counters: &[PlannedCounter],
        source: Source,
    ) -> CheckOutcome {
        let mut decisions = Decisions::new();
        for (other, counter) in counters.iter().enumerate() {
            if other == n {
                decisions.extend_from_slice(own);
            } else {
                decisions.extend(self.local_quota.unchecked_decisions(counter));
            }
        }
        denied(CheckResponse::new(false, self.time.store_now(), decisions), counters.len(), source)
    }
}

fn denied(response: CheckResponse, counters: usize, source: Source) -> CheckOutcome {
    let reservations = SmallVec::from_elem(Reservation::Nothing, counters);
    CheckOutcome { response, reservations, source, failure: None }
}

/// Returns an admitting response without decisions.
fn admitted_at(at: u64) -> CheckResponse {
    CheckResponse::new(true, at, Decisions::new())
}

/// Waits for a call to the store, but no longer than until the deadline. An async function would take the memory of the call
/// twice.
fn within<T>(
    deadline: Instant,
    call: impl Future<Output = Result<T, StoreError>>,
) -> impl Future<Output = Result<T, StoreError>> {
    timeout_at(deadline, call).map(|result| result.unwrap_or(Err(StoreError::Timeout)))
}

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
