//! Checks the parts of a query in their stores: usually one, and at most one for each store.
//!
//! Several parts are checked concurrently. If one of them is denied, what the others have charged is given back, so a denied request
//! counts there for a moment.

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use sluice_store::{StoreError, StoreFault};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::limit::correction::{self, Correction};
use crate::limit::query::{Part, Parts};
use crate::limit::reservation::{Open, begin};
use crate::limit::slots::{Slot, Slots, check_with_slots};
use crate::limit::snapshot::Snapshot;
use crate::limit::state::{Checked, State, States};

/// The slots that were acquired.
pub(crate) type Answered = Result<Vec<Slot>, StoreError>;

/// The error of a check whose task ended without a result: its runtime is shutting down.
const LOST: StoreError = StoreError::Unavailable(StoreFault::Unreachable);

/// Checks parts, and moves them to the states if all stores have answered. The stores may take until the deadline, if there is one.
///
/// # Errors
/// A store did not answer, and at least one limit denies in that case. Nothing stays charged as far as the stores have answered.
pub(crate) async fn check(
    slots: &Slots,
    snapshot: &Arc<Snapshot>,
    parts: &mut Parts,
    states: &mut States,
    deadline: Option<Instant>,
) -> Answered {
    let [only] = &mut parts[..] else {
        // In memory of its own, which a request with one store does not need.
        return Box::pin(check_several(slots, snapshot, parts, states, deadline)).await;
    };
    let result = check_part(slots, snapshot, only, deadline).await;
    give_up_unknown(snapshot, only, result.as_ref().ok().map(|(checked, _)| checked));
    let (checked, slots) = result?;
    states.extend(parts.pop().map(|part| State { part, checked }));
    Ok(slots)
}

async fn check_several(
    slots: &Slots,
    snapshot: &Arc<Snapshot>,
    parts: &mut Parts,
    states: &mut States,
    deadline: Option<Instant>,
) -> Answered {
    let results = join_all(parts.iter_mut().map(|part| check_part(slots, snapshot, part, deadline))).await;
    let mut acquired = Vec::new();
    let mut without_slots = |(checked, slots): (Checked, Vec<Slot>)| {
        acquired.extend(slots);
        checked
    };
    let results: Vec<_> = results.into_iter().map(|result| result.map(&mut without_slots)).collect();
    let admits =
        |result: &Result<Checked, _>| result.as_ref().is_ok_and(|checked| checked.outcome.response.admitted);
    let admitted = results.iter().all(admits);
    for (part, result) in parts.iter().zip(&results) {
        give_up_unknown(snapshot, part, result.as_ref().ok());
        if let (false, Ok(checked)) = (admitted, result) {
            refund(snapshot, part, checked, true);
        }
    }
    let results = results.into_iter().collect::<Result<Vec<_>, _>>()?;
    for (part, mut checked) in parts.drain(..).zip(results) {
        if !admitted {
            checked.give_back(&part);
        }
        states.push(State { part, checked });
    }
    // Slots of a request that is denied are released here.
    Ok(if admitted { acquired } else { Vec::new() })
}

async fn check_part(
    slots: &Slots,
    snapshot: &Snapshot,
    part: &mut Part,
    deadline: Option<Instant>,
) -> Result<(Checked, Vec<Slot>), StoreError> {
    let limiter = snapshot.limiter(part.limits[0]);
    if part.has_slots {
        return Box::pin(check_with_slots(slots, snapshot, limiter, part)).await;
    }
    let outcome = match deadline {
        None => limiter.check(&part.counters).await,
        Some(deadline) => limiter.check_within(&part.counters, left(deadline)).await,
    };
    outcome.map(|outcome| (Checked::new(part, outcome), Vec::new()))
}

fn left(deadline: Instant) -> Duration {
    deadline.saturating_duration_since(Instant::now())
}

/// Settles as unused what a part has reserved perhaps: the store did not answer.
fn give_up_unknown(snapshot: &Arc<Snapshot>, part: &Part, checked: Option<&Checked>) {
    let is_unknown =
        |n: usize| checked.is_none_or(|checked| checked.failure().is_some() && !checked.is_listed(part, n));
    let unknown = (0..part.limits.len()).filter(|&n| part.reserved.is_some() && is_unknown(n));
    for open in unknown.filter_map(|n| Open::of(part, n, None)) {
        // Without room for it, what was reserved stays charged.
        let _ = begin(snapshot, open, Some(0), drop);
    }
}

/// Gives back what was charged to the counters of a part: all of it, or else only what an outcome would correct or somebody settle.
/// Slots of this process are released by their own guards.
fn refund(snapshot: &Arc<Snapshot>, part: &Part, checked: &Checked, all: bool) {
    for (n, (limit, counter)) in part.iter().enumerate() {
        let charged = checked.charged(n);
        if checked.is_listed(part, n) {
            // Without room for it, what was reserved stays charged.
            let _ = Open::of(part, n, Some(charged)).map(|open| begin(snapshot, open, Some(0), drop));
        } else if snapshot.limit(limit).concurrency.is_none()
            && (all || snapshot.limit(limit).settlement.is_some())
        {
            Correction::refund(snapshot.limiter(limit).clone(), counter.clone(), charged).start(());
        }
    }
}

/// Checks parts as [`check`] does, in a task. If the caller is dropped, what the outcome would have corrected or somebody settled is
/// refunded, because the request is never forwarded, and nobody hears of a reservation.
pub(crate) async fn check_whole(
    slots: &Slots,
    snapshot: &Arc<Snapshot>,
    parts: &mut Parts,
    states: &mut States,
    deadline: Option<Instant>,
) -> Answered {
    let (of_task, slots, mut asked) = (snapshot.clone(), slots.clone(), parts.clone());
    let task = tokio::spawn(async move {
        let mut states = States::new();
        let result = check(&slots, &of_task, &mut asked, &mut states, deadline).await;
        (result, states)
    });
    let mut waiting = Waiting { snapshot, task: Some(task) };
    let finished = match &mut waiting.task {
        Some(task) => task.await,
        None => return Err(LOST),
    };
    waiting.task = None;
    let (result, found) = finished.map_err(|_| LOST)?;
    if result.is_ok() {
        parts.clear();
        *states = found;
    }
    result
}

/// Refunds the charges of a check that nobody waits for any more.
struct Waiting<'a> {
    snapshot: &'a Arc<Snapshot>,
    task: Option<JoinHandle<(Answered, States)>>,
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        let Some(task) = self.task.take() else { return };
        let snapshot = self.snapshot.clone();
        correction::spawn(async move {
            if let Ok((_slots, states)) = task.await {
                states.iter().for_each(|state| refund(&snapshot, &state.part, &state.checked, false));
            }
        });
    }
}
