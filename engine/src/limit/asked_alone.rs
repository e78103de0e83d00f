//! One counter is asked alone, and denies nothing: a cost that was used is charged, given back or settled in any case, or the counter is
//! read.

use std::sync::Arc;

use sluice_store::check::Decisions;
use sluice_store::{CheckOutcome, CheckResponse, PlannedCounter, Reservation, Source};
use smallvec::smallvec;
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::limit::check::check;
use crate::limit::correction::{Correction, LONGEST_WAIT};
use crate::limit::index::LimitIndex;
use crate::limit::query::{Intent, NamedReservation, Part};
use crate::limit::rates::strict;
use crate::limit::reservation::{Open, Settled, settle};
use crate::limit::slots::Slots;
use crate::limit::snapshot::Snapshot;
use crate::limit::state::{Checked, State, States};

type Answer = Result<State, &'static str>;

/// One counter, and until when its store may answer.
struct Alone<'a> {
    slots: &'a Slots,
    snapshot: &'a Arc<Snapshot>,
    part: Part,
    deadline: Option<Instant>,
}

/// Asks for one counter. Also returns whether a settlement has found its reservation.
pub(super) async fn ask_alone(
    slots: &Slots,
    snapshot: &Arc<Snapshot>,
    part: Part,
    intent: Intent,
    deadline: Option<Instant>,
) -> (Answer, Option<bool>) {
    let alone = Alone { slots, snapshot, part, deadline };
    match intent {
        Intent::Settle(named) => match alone.settle(named).await {
            Ok((state, found)) => (Ok(state), Some(found)),
            Err(fault) => (Err(fault), None),
        },
        Intent::Charge => (alone.charge().await, None),
        Intent::GiveBack => (alone.give_back().await, None),
        Intent::Consume | Intent::Reserve(_) | Intent::Peek => (alone.peek().await, None),
    }
}

impl Alone<'_> {
    fn limit(&self) -> LimitIndex {
        self.part.limits[0]
    }

    fn counter(&self) -> &PlannedCounter {
        &self.part.counters[0]
    }

    async fn check(&self, cost: u64) -> Answer {
        let mut part = self.part.clone();
        part.counters[0].cost = cost;
        let mut states = States::new();
        let result = check(self.slots, self.snapshot, &mut smallvec![part], &mut states, self.deadline).await;
        result.map_err(|error| error.as_str())?;
        states.pop().ok_or("")
    }

    /// Charges what was used, whether or not there is room.
    async fn charge(&self) -> Answer {
        let mut state = self.check(self.counter().cost).await?;
        if !state.checked.outcome.response.admitted {
            let elsewhere = elsewhere(&state.checked);
            self.correct(elsewhere, signed(self.counter().cost)).await;
            state.checked.outcome.reservations = smallvec![elsewhere];
        }
        Ok(state)
    }

    /// Gives a cost back, down to none.
    async fn give_back(&self) -> Answer {
        let before = self.check(0).await?;
        self.correct(elsewhere(&before.checked), -signed(self.counter().cost)).await;
        // A remembered denial knows nothing of it.
        let mut state = self.peek().await.unwrap_or(before);
        state.checked.outcome.response.admitted = true;
        state.checked.outcome.response.decisions.iter_mut().for_each(|decision| decision.admitted = true);
        Ok(state)
    }

    /// Settles a reservation. Without an id it is the oldest one, and what was used is charged if there is none.
    async fn settle(&self, named: Option<NamedReservation>) -> Result<(State, bool), &'static str> {
        let PlannedCounter { limit: plan, key, cost } = self.counter().clone();
        let (limit, plan) = match named {
            // The rates that it was charged by, if the policy still has them.
            Some(NamedReservation { rates, .. }) => {
                let limit = LimitIndex { rates, ..self.limit() };
                (limit, strict(&self.snapshot.limit(limit).rates_or_base(rates).plan))
            }
            None => (self.limit(), plan),
        };
        let number = named.map(|named| named.number);
        let overflowed = named.is_some_and(|named| named.overflowed);
        let open = Open { limit, plan, key, number, overflowed };
        let deadline = self.deadline.unwrap_or_else(|| Instant::now() + LONGEST_WAIT);
        let settled = settle(self.snapshot, open, Some(cost), deadline).await;
        let found = settled.map_err(|error| error.as_str())? != Settled::NotFound;
        let state = if !found && named.is_none() { self.charge().await? } else { self.peek().await? };
        Ok((state, found))
    }

    /// Reads the counter without counting anything. That of a limit which only this process counts, and which counts denials, tells
    /// nothing.
    async fn peek(&self) -> Answer {
        let PlannedCounter { limit, key, .. } = self.counter();
        let read = self.snapshot.limiter(self.limit()).peek(limit, *key).await;
        let decisions: Decisions = read.map_err(|error| error.as_str())?.unwrap_or_default();
        let admitted = decisions.iter().all(|decision| decision.admitted);
        let outcome = CheckOutcome {
            response: CheckResponse::new(admitted, self.snapshot.clock.now(), decisions),
            reservations: smallvec![Reservation::Nothing],
            source: Source::Store,
            failure: None,
        };
        let mut part = self.part.clone();
        // The ledger is not read.
        part.counters.truncate(1);
        let checked = Checked::new(&part, outcome);
        Ok(State { part, checked })
    }

    /// Corrects the counter, and waits for it while there is time. It is corrected in any case, unless the store stays away.
    async fn correct(&self, reservation: Reservation, delta: i64) {
        let limiter = self.snapshot.limiter(self.limit()).clone();
        let (corrected, wait) = oneshot::channel::<()>();
        Correction::by(delta, limiter, self.counter().clone(), reservation).start(corrected);
        match self.deadline {
            Some(deadline) => drop(timeout_at(deadline, wait).await),
            None => drop(wait.await),
        }
    }
}

/// Where what is charged beyond a decision goes.
fn elsewhere(checked: &Checked) -> Reservation {
    let at = checked.outcome.response.at;
    match (checked.failure(), checked.by_local_quota()) {
        (_, true) => Reservation::Local(at),
        (None, false) => Reservation::Store(at),
        (Some(_), false) => Reservation::Nothing,
    }
}

fn signed(cost: u64) -> i64 {
    i64::try_from(cost).unwrap_or(i64::MAX)
}
