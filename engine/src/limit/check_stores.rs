//! Checks all counters of a request in their stores: usually one, and at most one for each policy.
//!
//! Several stores are called concurrently. If one of them denies, what the others have charged is given back, so a
//! denied request counts there for a moment.

use futures::future::join_all;
use sluice_store::check::Decisions;
use sluice_store::{CheckOutcome, CheckResponse, KeyUsages, PlannedCounter, Reservation, Source, StoreError};
use smallvec::SmallVec;

use crate::limit::check::{Checked, check};
use crate::limit::correction::Correction;
use crate::limit::index::LimitIndex;
use crate::limit::slots::{Slot, Slots, check_with_slots};
use crate::limit::snapshot::Snapshot;
use crate::stores::limiter_handle::LimiterHandle;

/// The counters of a request.
type Counters = SmallVec<[PlannedCounter; 2]>;

/// Checks the counters of a request, which are in the order of `limits`, and returns the slots that were acquired.
///
/// # Errors
/// A store did not answer, and at least one limit denies in that case.
pub(crate) async fn check_all(
    slots: &Slots,
    snapshot: &Snapshot,
    limits: &[LimitIndex],
    counters: &mut Counters,
    has_slots: bool,
) -> Result<(Checked, Vec<Slot>), StoreError> {
    match snapshot.only_limiter(limits) {
        Some(limiter) if has_slots => check_with_slots(slots, snapshot, limiter, limits, counters).await,
        Some(limiter) => check(limiter, counters).await.map(|checked| (checked, Vec::new())),
        None => check_parts(slots, snapshot, limits, counters).await,
    }
}

/// The counters of a request that one store holds.
struct Part<'a> {
    limiter: &'a LimiterHandle,
    /// Their positions among all counters of the request.
    positions: SmallVec<[usize; 2]>,
    limits: SmallVec<[LimitIndex; 2]>,
    counters: Counters,
}

impl<'a> Part<'a> {
    fn new(limiter: &'a LimiterHandle) -> Self {
        Self { limiter, positions: SmallVec::new(), limits: SmallVec::new(), counters: SmallVec::new() }
    }

    async fn check(
        &mut self,
        slots: &Slots,
        snapshot: &Snapshot,
    ) -> Result<(Checked, Vec<Slot>), StoreError> {
        let Self { limiter, limits, counters, .. } = self;
        if limits.iter().any(|&index| snapshot.limit(index).concurrency.is_some()) {
            check_with_slots(slots, snapshot, limiter, limits, counters).await
        } else {
            check(limiter, counters).await.map(|checked| (checked, Vec::new()))
        }
    }

    /// Gives back what the store has charged. Slots are released by their own guards.
    fn refund(&self, snapshot: &Snapshot, outcome: &CheckOutcome) {
        let counters = self.limits.iter().zip(&self.counters);
        for ((&limit, counter), &reservation) in counters.zip(&outcome.reservations) {
            if snapshot.limit(limit).concurrency.is_none() {
                Correction::refund(self.limiter.clone(), counter.clone(), reservation).start(());
            }
        }
    }
}

/// Divides the counters of a request by their stores.
fn parts<'a>(
    snapshot: &'a Snapshot,
    limits: &[LimitIndex],
    counters: &[PlannedCounter],
) -> SmallVec<[Part<'a>; 2]> {
    let mut parts = SmallVec::<[Part<'a>; 2]>::new();
    for (position, (&limit, counter)) in limits.iter().zip(counters).enumerate() {
        let limiter = snapshot.limiter(limit);
        let known = parts.iter().position(|part| std::ptr::eq(part.limiter, limiter));
        let at = known.unwrap_or(parts.len());
        if known.is_none() {
            parts.push(Part::new(limiter));
        }
        parts[at].positions.push(position);
        parts[at].limits.push(limit);
        parts[at].counters.push(counter.clone());
    }
    parts
}

async fn check_parts(
    slots: &Slots,
    snapshot: &Snapshot,
    limits: &[LimitIndex],
    counters: &[PlannedCounter],
) -> Result<(Checked, Vec<Slot>), StoreError> {
    let mut parts = parts(snapshot, limits, counters);
    let results = join_all(parts.iter_mut().map(|part| part.check(slots, snapshot))).await;
    let admitted =
        results.iter().all(|result| matches!(result, Ok((checked, _)) if checked.outcome.response.admitted));
    if !admitted {
        for (part, result) in parts.iter().zip(&results) {
            if let Ok((checked, _)) = result {
                part.refund(snapshot, &checked.outcome);
            }
        }
    }
    let mut merged = Merged::new(counters.len());
    let mut acquired = Vec::new();
    for (part, result) in parts.iter().zip(results) {
        // Slots of a request that is denied are released here.
        let (checked, slots) = result?;
        merged.add(part, checked);
        if admitted {
            acquired.extend(slots);
        }
    }
    Ok((merged.finish(admitted), acquired))
}

/// The results of several stores, in the order of the request's counters.
struct Merged {
    decisions: Vec<Decisions>,
    reservations: SmallVec<[Reservation; 2]>,
    key_usages: KeyUsages,
    uncounted: u64,
    at: u64,
    source: Source,
    failure: Option<StoreError>,
}

impl Merged {
    fn new(counters: usize) -> Self {
        Self {
            decisions: vec![Decisions::new(); counters],
            reservations: SmallVec::from_elem(Reservation::Nothing, counters),
            key_usages: KeyUsages::default(),
            uncounted: 0,
            at: 0,
            source: Source::Store,
            failure: None,
        }
    }

    fn add(&mut self, part: &Part<'_>, checked: Checked) {
        let Checked { outcome, uncounted } = checked;
        let mut rest = &outcome.response.decisions[..];
        for (n, (&position, counter)) in part.positions.iter().zip(&part.counters).enumerate() {
            let (own, others) = rest.split_at(counter.limit.spec.rates.len().min(rest.len()));
            rest = others;
            self.decisions[position] = own.iter().copied().collect();
            self.reservations[position] =
                outcome.reservations.get(n).copied().unwrap_or(Reservation::Nothing);
            self.uncounted |= (uncounted >> n & 1) << position;
        }
        self.key_usages.extend(&outcome.response.key_usages, &part.positions);
        self.at = self.at.max(outcome.response.at);
        // A store that failed decides how the check is reported.
        if outcome.failure.is_some() && self.failure.is_none() {
            (self.source, self.failure) = (outcome.source, outcome.failure);
        }
    }

    fn finish(self, admitted: bool) -> Checked {
        let Self { decisions, mut reservations, key_usages, uncounted, at, source, failure } = self;
        if !admitted {
            reservations.fill(Reservation::Nothing);
        }
        let decisions = decisions.into_iter().flatten().collect();
        let response = CheckResponse { key_usages, ..CheckResponse::new(admitted, at, decisions) };
        Checked { outcome: CheckOutcome { response, reservations, source, failure }, uncounted }
    }
}
