//! Settlements by id: a cost is reserved in advance, stands in a ledger beside the counter, and is corrected when it is known.
//!
//! The store decides by [`decide`], [`find`], [`take`] and [`settle`], which are what runs in production. A settlement looks at its
//! reservation, and then takes it out and corrects the charge in one call. It is sent again after a call without an answer; two
//! reports may be about the same reservation; one without an id settles the oldest.

use std::sync::Arc;

use sluice_limiter::{Algorithm, Holder, Period, Rate, Requests, Reserved};
use sluice_store::check::{Records, charge, decide, find, settle, take};
use sluice_store::{Counter, KeyHash, LimitSpec, Settlement, ledger};
use stateright::{Model, Property};

use crate::check::Protocol;
use crate::rules::{Rules, rules};
use crate::time::START;

const WHOLE_AND_ONCE: &str = "each charge is corrected once, and whole";
const ONE_EACH: &str = "a report settles one reservation at most";
const KEY: KeyHash = KeyHash(7);
/// Cost that is reserved.
const RESERVED: u64 = 2;
/// Time for which a reservation is open, in milliseconds.
const OPEN: u64 = 1000;

rules! {
    /// Obeyed by a report.
    SettleRule {
        /// The reservation is taken out, and its charge corrected, by one call or not at all.
        TakesAndCorrects = "settle.takes-and-corrects" keeps WHOLE_AND_ONCE;
        /// A report that is sent again is about the reservation that it found first.
        RepeatsSame = "settle.repeats-same" keeps ONE_EACH;
        /// The cost of a reservation is corrected at the instant of its charge.
        NamesCharge = "settle.names-charge" keeps WHOLE_AND_ONCE;
    }
}

/// The protocol within these bounds.
#[derive(Debug, Clone)]
pub struct Settlements {
    rules: Rules<SettleRule>,
    /// For each report, the reservation that it names, or the oldest, and the cost in the end.
    reports: Vec<(Option<u64>, u64)>,
    reservations: u8,
    lost_answers: u8,
    time: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Report {
    found: Option<(u64, u64, u64)>,
    /// Whether it was sent without an answer.
    is_sent: bool,
    is_done: bool,
    /// Number of reservations that it has taken.
    taken: u8,
}

/// The state of store and reports.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    counter: Records,
    ledger: Records,
    reports: Vec<Report>,
    /// Reservations that were taken.
    taken: Vec<u64>,
    /// The right count of each window.
    expected: Vec<u64>,
    reserved: u8,
    lost_answers: u8,
    time: u8,
    has_charged_more: bool,
    has_expired: bool,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// The next cost is reserved.
    Reserve,
    /// A report looks for its reservation.
    Look(usize),
    /// A report takes its reservation, and learns of it.
    Take(usize),
    /// A report takes its reservation, and does not learn of it.
    TakeWithoutAnswer(usize),
    /// Half a window passes.
    Advance,
}

impl Settlements {
    fn spec() -> Arc<LimitSpec> {
        let (requests, period) =
            (Requests::new(10).expect("in range"), Period::from_millis(2 * OPEN).expect("in range"));
        // Both windows of the estimate can be corrected.
        let rate = Rate::new(requests, period, Algorithm::SLIDING_WINDOW).expect("a valid rate");
        Arc::new(LimitSpec::new("n/p/l", vec![rate]))
    }

    fn ledger(id: u64) -> Arc<LimitSpec> {
        let (id, lasts) = (Holder::new(id).expect("in range"), Period::from_millis(OPEN).expect("in range"));
        Arc::new(ledger("n/p/l", id, lasts))
    }

    fn now(state: &State) -> u64 {
        START + u64::from(state.time) * OPEN * 750
    }

    fn take(&self, state: &mut State, n: usize, is_answered: bool) {
        let now = Self::now(state);
        let Some((id, cost, charged)) = state.reports[n].found else { return };
        let id = Holder::new(id).expect("in range");
        let (named, used) = self.reports[n];
        let delta = used as i64 - cost as i64;
        let is_there = find(Some(id), &state.ledger, now).is_some();
        if is_there || !self.rules.has(SettleRule::TakesAndCorrects) {
            let charged = if self.rules.has(SettleRule::NamesCharge) { charged } else { now };
            let limit = Self::spec();
            if delta > 0 {
                let counter = Counter { limit, key: KEY, cost: delta as u64 };
                let mut records = [std::mem::take(&mut state.counter)];
                charge(&[counter], &mut records, now);
                [state.counter] = records;
                state.has_charged_more = true;
            } else {
                let settlement = Settlement { limit, key: KEY, charged, delta, overflowed: false, least: 0 };
                settle(&settlement, &mut state.counter, now);
            }
        }
        if take(id, &mut state.ledger, now) && !state.taken.contains(&id.get()) {
            state.taken.push(id.get());
            let window = if delta > 0 { window_of(now) } else { window_of(charged) };
            state.expected[window] = state.expected[window].saturating_add_signed(delta);
            state.reports[n].taken += 1;
        }
        let report = &mut state.reports[n];
        if !is_answered {
            report.is_sent = self.rules.has(SettleRule::RepeatsSame);
        } else if is_there || named.is_some() || report.is_sent {
            report.is_done = true;
        }
        if !report.is_done && !report.is_sent {
            // Another one was quicker. Then the oldest is the next.
            report.found = None;
        }
    }
}

/// Returns the number of the window of an instant.
fn window_of(now: u64) -> usize {
    ((now - START) / (2 * OPEN * 1000)) as usize
}

impl Protocol for Settlements {
    type Rule = SettleRule;

    fn with(&self, rules: Rules<SettleRule>) -> Self {
        Self { rules, ..self.clone() }
    }
}

impl Model for Settlements {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            counter: Records::new(),
            ledger: Records::new(),
            reports: vec![Report::default(); self.reports.len()],
            taken: vec![],
            expected: vec![0; 4],
            reserved: 0,
            lost_answers: self.lost_answers,
            time: 0,
            has_charged_more: false,
            has_expired: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.reserved < self.reservations {
            actions.push(Action::Reserve);
        }
        for (n, report) in state.reports.iter().enumerate().filter(|(_, report)| !report.is_done) {
            if report.found.is_none() {
                actions.push(Action::Look(n));
            } else {
                actions.push(Action::Take(n));
                if state.lost_answers > 0 {
                    actions.push(Action::TakeWithoutAnswer(n));
                }
            }
        }
        if state.time < self.time {
            actions.push(Action::Advance);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        let now = Self::now(&state);
        match action {
            Action::Reserve => {
                state.reserved += 1;
                let counter = |limit| Counter { limit, key: KEY, cost: RESERVED };
                let check = [counter(Self::spec()), counter(Self::ledger(u64::from(state.reserved)))];
                let mut records = [std::mem::take(&mut state.counter), std::mem::take(&mut state.ledger)];
                if decide(&check, &mut records, now).admitted {
                    state.expected[window_of(now)] += RESERVED;
                }
                [state.counter, state.ledger] = records;
            }
            Action::Look(n) => {
                let named = self.reports[n].0.map(|id| Holder::new(id).expect("in range"));
                let found = find(named, &state.ledger, now);
                state.reports[n].found =
                    found.map(|Reserved { id, cost, charged }| (id.get(), cost, charged));
            }
            Action::Take(n) => self.take(&mut state, n, true),
            Action::TakeWithoutAnswer(n) => {
                state.lost_answers -= 1;
                self.take(&mut state, n, false);
            }
            Action::Advance => {
                let is_open = find(None, &state.ledger, now).is_some();
                state.time += 1;
                state.has_expired |= is_open && find(None, &state.ledger, Self::now(&state)).is_none();
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(WHOLE_AND_ONCE, |_, state: &State| {
                let now = Self::now(state);
                let rate = Self::spec().rates[0];
                let Some(stored) = state.counter.first() else { return true };
                let (record, _) = rate.roll(Some(stored.clone()), now);
                let window = window_of(now);
                let before = window.checked_sub(1).map_or(0, |before| state.expected[before]);
                record.current == state.expected[window] && record.previous == before
            }),
            Property::always(ONE_EACH, |_, state: &State| {
                state.reports.iter().all(|report| report.taken <= 1)
            }),
            Property::sometimes("two reports settle two reservations", |_, state: &State| {
                state.reports.iter().filter(|report| report.taken == 1).count() == 2
            }),
            Property::sometimes("a cost is more than was reserved", |_, state: &State| {
                state.has_charged_more
            }),
            Property::sometimes("a reservation expires", |_, state: &State| state.has_expired),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{holds, needs_each_rule};
    use crate::rules::Rule as _;

    fn settlements() -> Settlements {
        let reports = vec![(Some(1), 1), (Some(1), 1), (None, 3), (None, 0)];
        Settlements { rules: Rules::all(), reports, reservations: 2, lost_answers: 2, time: 3 }
    }

    #[test]
    fn each_charge_is_corrected_once_and_whole() {
        holds(&settlements());
    }

    #[test]
    fn settlements_need_each_rule() {
        needs_each_rule(&[(settlements(), SettleRule::ALL)]);
    }
}
