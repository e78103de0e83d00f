//! Shares and their flush: replicas that the store does not answer admit their share of a limit, and add it to the store later.
//!
//! A replica decides by its [`LocalCounter`], and the store by [`decide`], [`charge`] and
//! [`to_add`](sluice_store::pure::UnflushedUsage::to_add), which are what runs in production. Answers are lost, the store is away for each
//! replica at times, forgets while it is, and windows end.

use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;

use sluice_limiter::{Algorithm, Decision, Period, Rate, Requests};
use sluice_store::check::{Records, charge, decide};
use sluice_store::pure::{KnownUsage, LocalCounter};
use sluice_store::{Consistency, Counter, KeyHash, LimitPlan, LimitSpec, OnStoreFailure, Replica, Replicas};
use stateright::{Model, Property};

use crate::check::Protocol;
use crate::rules::{Rules, rules};
use crate::time::{Instants, START};

const SHARES: &str = "a window admits N, and the shares of those that the store did not answer";
const ALONE: &str = "a replica alone admits N in a window";
const COUNTED: &str = "what was admitted is in the store when it is flushed, up to N";
const NOT_TWICE: &str = "a window counts what was admitted in it, once";
const KEY: KeyHash = KeyHash(7);

rules! {
    /// Obeyed by a replica.
    ShareRule {
        /// Local usage is in the store before the store decides another request.
        FlushedBeforeCheck = "share.flushed-before-check" keeps ALONE;
        /// Usage whose charge has no answer is marked before the charge is sent.
        UnknownIsMarked = "share.unknown-is-marked" keeps NOT_TWICE;
        /// A replica keeps the usage in the last answer of the store.
        KeepsLastKnown = "share.keeps-last-known" keeps ALONE;
        /// Usage that a flush has added is known, too.
        FlushIsKnown = "share.flush-is-known" keeps ALONE;
        /// A flush looks at the store before it adds what was lost.
        LooksFirst = "share.looks-first" keeps NOT_TWICE;
    }
}

/// The protocol within these bounds.
#[derive(Debug, Clone)]
pub struct Shares {
    rules: Rules<ShareRule>,
    plan: Arc<LimitPlan>,
    instants: Instants,
    replicas: u32,
    most: Faults,
}

/// How often something may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Faults {
    /// The store goes away for a replica.
    outages: u8,
    /// An answer is lost.
    lost_answers: u8,
    /// The store forgets.
    forgets: u8,
}

/// A local counter, and the hash of its content, which has no equality.
#[derive(Debug, Clone)]
struct Local(Box<LocalCounter>, u64);

impl Local {
    fn new(counter: LocalCounter) -> Self {
        let mut hasher = DefaultHasher::new();
        format!("{counter:?}").hash(&mut hasher);
        Self(Box::new(counter), hasher.finish())
    }
}

impl PartialEq for Local {
    fn eq(&self, other: &Self) -> bool {
        self.1 == other.1
    }
}

impl Hash for Local {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.1.hash(state);
    }
}

#[derive(Debug, Clone, PartialEq, Hash)]
struct Share {
    is_away: bool,
    counter: Option<Local>,
    known: Option<KnownUsage>,
}

/// The state of store and replicas.
#[derive(Debug, Clone, PartialEq, Hash)]
pub struct State {
    step: usize,
    store: Records,
    replicas: Vec<Share>,
    left: Faults,
    /// For each window, what was admitted, what was charged without an answer, and the replicas that used their shares.
    admitted: Vec<u64>,
    unanswered: Vec<u64>,
    shared: Vec<Vec<bool>>,
    has_forgotten: bool,
    has_flushed: bool,
}

/// The end of a flush.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// The store answers.
    Answered,
    /// The store executes the last call, and its answer is lost.
    Unanswered,
    /// The last call is lost.
    Lost,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A request arrives at a replica.
    Ask(usize),
    /// A request arrives, and the answer of the store is lost.
    AskWithoutAnswer(usize),
    /// A replica adds its usage to the store.
    Flush(usize, End),
    /// The store goes away for a replica.
    Fail(usize),
    /// It is back.
    Heal(usize),
    /// Time goes on.
    Advance,
    /// The store forgets while nobody reaches it.
    Forget,
}

impl Shares {
    /// Returns the shares of so many replicas of a number a second.
    ///
    /// # Panics
    /// A number is out of range.
    #[must_use]
    pub fn new(number: u64, replicas: u32, algorithm: Algorithm, most: Faults) -> Self {
        let (requests, period) =
            (Requests::new(number).expect("in range"), Period::from_millis(1000).expect("in range"));
        let rate = Rate::new(requests, period, algorithm).expect("a valid rate");
        let spec = Arc::new(LimitSpec::new("n/p/l", vec![rate]));
        let shared = Replicas::new(Replica::new(0, replicas));
        let plan = LimitPlan::new(spec, Consistency::Strict, OnStoreFailure::Share, false, shared);
        let window = period.micros();
        let instants = Instants { window, within: vec![0, window / 2], windows: 2 };
        Self { rules: Rules::all(), plan: Arc::new(plan), instants, replicas, most }
    }

    fn now(&self, state: &State) -> u64 {
        START + self.instants.at(state.step)
    }

    fn window(&self, state: &State) -> usize {
        state.step / self.instants.within.len()
    }

    fn rate(&self) -> Rate {
        self.plan.spec.rates[0]
    }

    /// The store decides a request. Returns whether it admits it, and its decision.
    fn check(&self, state: &mut State, cost: u64) -> (bool, Decision) {
        let mut records = [std::mem::take(&mut state.store)];
        let response = decide(
            &[Counter { limit: self.plan.spec.clone(), key: KEY, cost }],
            &mut records,
            self.now(state),
        );
        [state.store] = records;
        (response.admitted, response.decisions[0])
    }

    /// Returns the usage in the store.
    fn used(&self, state: &State) -> u64 {
        let now = self.now(state);
        let Some(stored) = state.store.first() else { return 0 };
        let (record, _) = self.rate().roll(Some(stored.clone()), now);
        record.current
    }

    fn ask(&self, state: &mut State, n: usize, is_answered: bool) {
        let window = self.window(state);
        if !state.replicas[n].is_away {
            let (is_admitted, decision) = self.check(state, 1);
            if is_answered {
                state.admitted[window] += u64::from(is_admitted);
                self.know(state, n, self.rate().used_after(&decision));
                return;
            }
            state.unanswered[window] += u64::from(is_admitted);
        }
        // The share decides.
        let now = self.now(state);
        let known = state.replicas[n].known;
        let local = state.replicas[n].counter.take().map(|local| *local.0);
        let own = [Replica::new(n as u32, self.replicas)];
        let mut local = local.unwrap_or_else(|| LocalCounter::new(&self.plan, KEY, &own, known));
        let mut records = [std::mem::take(&mut local.records)];
        let check = [Counter { limit: local.limit.clone(), key: KEY, cost: 1 }];
        let is_admitted = decide(&check, &mut records, now).admitted;
        [local.records] = records;
        if is_admitted {
            local.admitted(now, 1);
            state.admitted[window] += 1;
        }
        state.shared[window][n] = true;
        state.replicas[n].counter = Some(Local::new(local));
    }

    fn know(&self, state: &mut State, n: usize, used: u64) {
        if self.rules.has(ShareRule::KeepsLastKnown) {
            state.replicas[n].known = Some(KnownUsage { at: self.now(state), used: [used, 0, 0, 0] });
        }
    }

    fn flush(&self, state: &mut State, n: usize, end: End) {
        let now = self.now(state);
        let Some(local) = state.replicas[n].counter.take() else { return };
        let mut local = *local.0;
        let usages = local.take_unflushed(now);
        state.has_flushed = true;
        let Some(mut usage) = usages.into_iter().next() else { return };
        let is_executed = end != End::Lost;
        let looks = self.rules.has(ShareRule::LooksFirst);
        let in_store = if looks { self.rate().used_after(&self.check(state, 0).1) } else { 0 };
        let (acquired, charged) = usage.to_add(Some(in_store));
        // Each call may be the last one.
        let is_charge_last = charged > 0;
        if is_executed || is_charge_last {
            let granted = (0..acquired).take_while(|_| self.check(state, 1).0).count();
            if usage.may_be_charged {
                // Perhaps it counts twice, but not beyond N.
                let window = self.window(state);
                state.unanswered[window] += granted as u64;
            }
        }
        if is_charge_last {
            usage.may_be_charged = self.rules.has(ShareRule::UnknownIsMarked);
            if is_executed {
                let counter = Counter { limit: self.plan.spec.clone(), key: KEY, cost: charged };
                let mut records = [std::mem::take(&mut state.store)];
                charge(&[counter], &mut records, now);
                [state.store] = records;
            }
        }
        if end == End::Answered {
            if self.rules.has(ShareRule::FlushIsKnown) {
                self.know(state, n, usage.then_in_store(Some(in_store)).unwrap_or(0));
            }
            return;
        }
        local.put_back(&usage, now);
        state.replicas[n].counter = Some(Local::new(local));
    }
}

impl Protocol for Shares {
    type Rule = ShareRule;

    fn with(&self, rules: Rules<ShareRule>) -> Self {
        Self { rules, ..self.clone() }
    }
}

impl Model for Shares {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let share = Share { is_away: false, counter: None, known: None };
        vec![State {
            step: 0,
            store: Records::new(),
            replicas: vec![share; self.replicas as usize],
            left: self.most.clone(),
            admitted: vec![0; self.instants.windows],
            unanswered: vec![0; self.instants.windows],
            shared: vec![vec![false; self.replicas as usize]; self.instants.windows],
            has_forgotten: false,
            has_flushed: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, replica) in state.replicas.iter().enumerate() {
            if replica.is_away {
                actions.extend([Action::Ask(n), Action::Heal(n)]);
                continue;
            }
            if replica.counter.is_some() {
                actions.push(Action::Flush(n, End::Answered));
                if state.left.lost_answers > 0 {
                    actions.extend([Action::Flush(n, End::Unanswered), Action::Flush(n, End::Lost)]);
                }
            }
            if replica.counter.is_none() || !self.rules.has(ShareRule::FlushedBeforeCheck) {
                actions.push(Action::Ask(n));
                if state.left.lost_answers > 0 {
                    actions.push(Action::AskWithoutAnswer(n));
                }
            }
            if state.left.outages > 0 {
                actions.push(Action::Fail(n));
            }
        }
        if state.step + 1 < self.instants.count() {
            actions.push(Action::Advance);
        }
        // Of clients that send nothing during an outage, nobody knows anything then.
        let is_known = |replica: &Share| replica.is_away && replica.counter.is_some();
        if state.left.forgets > 0 && state.replicas.iter().all(is_known) {
            actions.push(Action::Forget);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Ask(n) => self.ask(&mut state, n, true),
            Action::AskWithoutAnswer(n) => {
                state.left.lost_answers -= 1;
                self.ask(&mut state, n, false);
            }
            Action::Flush(n, end) => {
                state.left.lost_answers -= u8::from(end != End::Answered);
                self.flush(&mut state, n, end);
            }
            Action::Fail(n) => {
                state.left.outages -= 1;
                state.replicas[n].is_away = true;
            }
            Action::Heal(n) => state.replicas[n].is_away = false,
            Action::Advance => state.step += 1,
            Action::Forget => {
                state.left.forgets -= 1;
                state.store = Records::new();
                state.has_forgotten = true;
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(SHARES, |model: &Self, state: &State| {
                let number = model.rate().requests.get();
                let shares = |shared: &Vec<bool>| match shared.iter().filter(|used| **used).count() as u64 {
                    used if used == u64::from(model.replicas) => number,
                    used => number.div_ceil(u64::from(model.replicas)) * used,
                };
                state
                    .admitted
                    .iter()
                    .zip(&state.shared)
                    .all(|(admitted, shared)| *admitted <= number + shares(shared))
            }),
            Property::always(ALONE, |model: &Self, state: &State| {
                model.replicas > 1
                    || state.admitted.iter().all(|admitted| *admitted <= model.rate().requests.get())
            }),
            Property::always(COUNTED, |model: &Self, state: &State| {
                let is_flushed = state.replicas.iter().all(|replica| replica.counter.is_none());
                let admitted = state.admitted[model.window(state)];
                !is_flushed || model.used(state) >= admitted.min(model.rate().requests.get())
            }),
            Property::always(NOT_TWICE, |model: &Self, state: &State| {
                let window = model.window(state);
                model.used(state) <= state.admitted[window] + state.unanswered[window]
            }),
            Property::sometimes(
                "a share is flushed, and the store admits the rest",
                |model: &Self, state: &State| {
                    state.has_flushed
                        && state.admitted[0] == model.rate().requests.get()
                        && model.used(state) == state.admitted[0]
                },
            ),
            Property::sometimes("a window begins during an outage", |_, state: &State| {
                state.admitted[1] > 0 && state.shared[1][0] && state.shared[0][0]
            }),
            Property::sometimes(
                "what was forgotten is in the store again, if it forgets",
                |model: &Self, state: &State| {
                    model.most.forgets == 0
                        || state.has_forgotten && state.has_flushed && model.used(state) == 2
                },
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{holds, needs_each_rule};
    use crate::rules::Rule as _;

    fn alone() -> Shares {
        Shares::new(3, 1, Algorithm::FIXED_WINDOW, Faults { outages: 3, lost_answers: 2, forgets: 1 })
    }

    fn two(algorithm: Algorithm) -> Shares {
        Shares::new(3, 2, algorithm, Faults { outages: 2, lost_answers: 1, forgets: 0 })
    }

    #[test]
    fn a_replica_alone_admits_the_number() {
        holds(&alone());
    }

    #[test]
    fn replicas_admit_the_number_and_their_shares() {
        holds(&two(Algorithm::FIXED_WINDOW));
    }

    #[test]
    fn shares_need_each_rule() {
        needs_each_rule(&[(alone(), ShareRule::ALL)]);
    }
}
