//! Decides a query: one check for everything that is asked together, one beside it for each limit that marks or is in Shadow and for
//! each counter that is charged, settled or read in any case, and the policies' `onStoreFailure` if the store does not answer.

use std::sync::Arc;

use futures::future::{join, join_all};
use sluice_config::policy::OnStoreFailure;
use tokio::time::Instant;

use crate::limit::active::Effect;
use crate::limit::asked_alone::ask_alone;
use crate::limit::check::{Answered, check, check_whole};
use crate::limit::delay_queue::Delay;
use crate::limit::index::LimitIndex;
use crate::limit::query::{Beside, Intent, Parts, Query};
use crate::limit::queue::Wait;
use crate::limit::reservation::{Open, begin};
use crate::limit::settle::{Charges, Upload};
use crate::limit::slots::{Slot, Slots};
use crate::limit::snapshot::Snapshot;
use crate::limit::state::{State, States};
use crate::limit::verdict::{Outcome, Reason, StateBeside, Verdict};

/// Decides a query. It is taken, and not moved as a whole: a future keeps each argument. Nothing is recorded yet.
pub(crate) async fn decide(snapshot: Arc<Snapshot>, query: &mut Query, slots: &Slots) -> Verdict {
    if query.meets_too_many {
        return Verdict::denied(snapshot, Reason::TooManyLimits);
    }
    if let Some((limit, refusal)) = query.refused {
        let mut verdict = Verdict::denied(snapshot, Reason::Refused(limit, refusal));
        // What was used is charged whatever else is denied.
        query.parts.clear();
        query.beside.retain(|one| !one.intent.needs_room());
        if !query.beside.is_empty() {
            let _ = Box::pin(ask_with_beside(query, slots, &mut verdict, None)).await;
        }
        return verdict;
    }
    let mut verdict = Verdict::new(snapshot, Outcome::Admit(None));
    verdict.held.abandoned_for = query.abandoned_for;
    if let Err(limit) = acquire_permits(query, &mut verdict) {
        verdict.outcome = Outcome::Deny(Reason::Shed(limit));
        return verdict;
    }
    let upload = query.counts_upload.then(Upload::default);
    if let Some(upload) = &upload {
        verdict.held.charges.meter(upload.meter());
    }
    let result = if query.beside.is_empty() {
        ask(&verdict.snapshot, query, &mut verdict.states, slots).await
    } else {
        // In memory of its own, which the requests that meet no such limit do not need.
        Box::pin(ask_with_beside(query, slots, &mut verdict, upload.as_ref())).await
    };
    verdict.outcome = match result {
        Err(error) => {
            verdict.unanswered = query.parts.iter().flat_map(|part| &part.limits).copied().collect();
            without_store(&verdict, error.as_str())
        }
        Ok(acquired) => {
            verdict.held.slots.extend(acquired);
            outcome(query, &mut verdict, upload.as_ref())
        }
    };
    if !matches!(verdict.outcome, Outcome::Wait(_)) {
        verdict.beside_refused = std::mem::take(&mut query.beside_refused);
    }
    verdict
}

/// Acquires the permits of all adaptive limits, or none. Fails with the limit that is reached.
fn acquire_permits(query: &Query, verdict: &mut Verdict) -> Result<(), LimitIndex> {
    for &(index, from) in &query.adaptive {
        let limit = verdict.snapshot.limit(index);
        let Some(adaptive) = &limit.adaptive else { continue };
        let (permit, had_room) = match limit.effect {
            Effect::Deny => match adaptive.try_acquire(from) {
                Some(permit) => (permit, true),
                None => {
                    verdict.held.permits.clear();
                    verdict.permits.clear();
                    return Err(index);
                }
            },
            Effect::Mark(_) | Effect::Observe => adaptive.acquire_anyway(from),
        };
        verdict.permits.push((index, had_room));
        verdict.held.permits.push(permit);
    }
    Ok(())
}

/// Asks for everything that is asked together.
async fn ask(snapshot: &Arc<Snapshot>, query: &mut Query, states: &mut States, slots: &Slots) -> Answered {
    check_safely(slots, snapshot, &mut query.parts, states, (query.settles, query.deadline)).await
}

/// Checks parts. If somebody settles their charges, they are refunded when the caller is dropped meanwhile.
async fn check_safely(
    slots: &Slots,
    snapshot: &Arc<Snapshot>,
    parts: &mut Parts,
    states: &mut States,
    (settles, deadline): (bool, Option<Instant>),
) -> Answered {
    // A store in memory decides at once.
    if settles && parts.iter().any(|part| snapshot.limiter(part.limits[0]).memory().is_none()) {
        return Box::pin(check_whole(slots, snapshot, parts, states, deadline)).await;
    }
    check(slots, snapshot, parts, states, deadline).await
}

/// Asks for everything that is asked together, and beside it for each of the others.
async fn ask_with_beside(
    query: &mut Query,
    slots: &Slots,
    verdict: &mut Verdict,
    upload: Option<&Upload>,
) -> Answered {
    let snapshot = verdict.snapshot.clone();
    let deadline = query.deadline;
    let mut unheard = Unheard::of(&snapshot, query);
    let of_outcome = (query.is_forwarded, upload);
    let beside = std::mem::take(&mut query.beside).into_iter();
    let beside = join_all(beside.map(|one| ask_beside(slots, &snapshot, one, of_outcome, deadline)));
    let (result, beside) = if query.has_queue {
        // A request that waits is checked several times, but counts once.
        let result = ask(&snapshot, query, &mut verdict.states, slots).await;
        let waits = result.is_ok() && Wait::of(&snapshot, &verdict.states).is_some();
        (result, if waits { Vec::new() } else { beside.await })
    } else {
        join(ask(&snapshot, query, &mut verdict.states, slots), beside).await
    };
    unheard.reserved.clear();
    for (one, acquired, charges) in beside {
        verdict.held.slots.extend(acquired);
        verdict.held.charges.extend(charges);
        verdict.beside.push(one);
    }
    result
}

/// Reservations of a query whose caller may leave before all of it is answered. They are settled then, as if nothing had been used.
struct Unheard<'a> {
    snapshot: &'a Arc<Snapshot>,
    reserved: Vec<Open>,
}

impl<'a> Unheard<'a> {
    fn of(snapshot: &'a Arc<Snapshot>, query: &Query) -> Self {
        let parts = query.parts.iter().chain(query.beside.iter().map(|one| &one.part));
        let reserved = parts.flat_map(|part| (0..part.limits.len()).filter_map(|n| Open::of(part, n, None)));
        Self { snapshot, reserved: reserved.collect() }
    }
}

impl Drop for Unheard<'_> {
    fn drop(&mut self) {
        for open in self.reserved.drain(..) {
            // Without room for it, what was reserved stays charged.
            let _ = begin(self.snapshot, open, Some(0), drop);
        }
    }
}

/// Asks for one counter alone. Returns what is held of it: if the caller leaves, what its outcome would have corrected is refunded.
async fn ask_beside(
    slots: &Slots,
    snapshot: &Arc<Snapshot>,
    beside: Beside,
    (is_forwarded, upload): (bool, Option<&Upload>),
    deadline: Option<Instant>,
) -> (StateBeside, Vec<Slot>, Charges) {
    let Beside { part, intent, denies } = beside;
    let (limit, key) = (part.limits[0], part.counters[0].key);
    let told = |state, settled| StateBeside { limit, key, intent, denies, state, settled };
    let settles = part.reserved.is_some() || snapshot.limit(limit).settlement.is_some();
    match intent {
        Intent::Consume | Intent::Reserve(_) => {
            let (mut parts, mut states) = (smallvec::smallvec![part], States::new());
            let result = check_safely(slots, snapshot, &mut parts, &mut states, (settles, deadline)).await;
            match result.map(|acquired| (states.pop(), acquired)) {
                Ok((Some(state), acquired)) => {
                    let mut charges = Charges::default();
                    if is_forwarded {
                        keep_charges(snapshot, &mut charges, &state, upload);
                    }
                    (told(Ok(state), None), acquired, charges)
                }
                Ok((None, acquired)) => (told(Err(""), None), acquired, Charges::default()),
                Err(error) => (told(Err(error.as_str()), None), Vec::new(), Charges::default()),
            }
        }
        Intent::Peek | Intent::Charge | Intent::GiveBack | Intent::Settle(_) => {
            let (state, settled) = ask_alone(slots, snapshot, part, intent, deadline).await;
            (told(state, settled), Vec::new(), Charges::default())
        }
    }
}

/// Keeps the charges of a part that the outcome of the request corrects.
fn keep_charges(snapshot: &Snapshot, charges: &mut Charges, state: &State, upload: Option<&Upload>) {
    for (n, (limit, counter)) in state.part.iter().enumerate() {
        charges.add(snapshot, limit, counter, state.checked.charged(n), upload);
    }
}

/// Returns what follows from the answers of the stores.
fn outcome(query: &Query, verdict: &mut Verdict, upload: Option<&Upload>) -> Outcome {
    let Verdict { snapshot, states, held, .. } = verdict;
    let uncounted = |state: &State| state.checked.uncounted.count_ones() as usize == state.part.limits.len();
    let failure = states.iter().find_map(|state| state.checked.failure());
    if let Some(fault) = failure.filter(|_| states.iter().all(uncounted)) {
        return without_store(verdict, fault);
    }
    if !states.iter().all(|state| state.checked.outcome.response.admitted) {
        let wait = if query.has_queue { Wait::of(snapshot, states) } else { None };
        return wait.map_or(Outcome::Deny(Reason::Limits), Outcome::Wait);
    }
    let delay = if query.is_forwarded { Delay::of(snapshot, states) } else { Ok(None) };
    match delay {
        Ok(delay) => {
            let delay = delay.map(Box::new);
            if query.settles && query.is_forwarded {
                states.iter().for_each(|state| keep_charges(snapshot, &mut held.charges, state, upload));
            }
            Outcome::Admit(delay)
        }
        Err(full) => Outcome::Deny(Reason::QueueFull(full)),
    }
}

/// Returns what follows if neither the store nor local quota has counted.
fn without_store(verdict: &Verdict, fault: &'static str) -> Outcome {
    let snapshot = &verdict.snapshot;
    let limits = || {
        let answered = verdict.states.iter().flat_map(|state| &state.part.limits);
        answered.chain(&verdict.unanswered).copied()
    };
    if let Some(limit) = limits().find(|&index| snapshot.limit(index).has_expired_slots()) {
        return Outcome::Deny(Reason::SlotsExpired { limit, fault });
    }
    match limits().find(|&index| snapshot.policy(index).on_store_failure == OnStoreFailure::Deny) {
        Some(limit) => Outcome::Deny(Reason::StoreFailed { limit, fault }),
        None => Outcome::Unknown(fault),
    }
}
