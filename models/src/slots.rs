//! Slots of concurrency limits: processes take them in the store for their requests, give them back, and renew them until then.
//!
//! The store decides by [`decide`], [`settle`] and [`reset`], which are what runs in production. Calls of a process arrive one after
//! another, late or never, and answers are lost; the store forgets, slots expire while a process is cut off, and an operator
//! resets the counter.

use std::sync::Arc;

use sluice_limiter::{Algorithm, Holder, MAX_CONCURRENT, Period, Rate, Requests, SlotsFound};
use sluice_store::check::{Records, decide, reset, settle};
use sluice_store::{Counter, KeyHash, LimitSpec, Settlement};
use stateright::{Model, Property};

use crate::check::Protocol;
use crate::rules::{Rules, rules};
use crate::time::START;

const NEVER_MORE: &str = "beside the requests that were in progress or asked for at a loss or a reset, no more than N are in progress";
const NO_FALSE_LOSS: &str = "a loss is seen only after one";
const RESET_HOLDS: &str = "slots that were reset are not taken again";
const KEY: KeyHash = KeyHash(7);
const LEASE: u64 = 30_000;

rules! {
    /// Obeyed by a process with slots.
    SlotRule {
        /// Each call says how many slots the holder must have at least.
        TellsLeast = "slots.tells-least" keeps NEVER_MORE;
        /// After a call without an answer, and after a loss, new requests take their slots under a new holder.
        NewHolder = "slots.new-holder" keeps NEVER_MORE;
        /// Everything under an old holder is released only when its slots are taken under a new one.
        MovesFirst = "slots.moves-first" keeps NEVER_MORE;
        /// The end of a request whose slot was reset frees nothing.
        EndOfReset = "slots.end-of-reset" keeps NEVER_MORE;
        /// A call that says fewer slots does not overtake another one.
        InOrder = "slots.in-order" keeps NO_FALSE_LOSS;
        /// A call says when the first of the slots was granted.
        SinceFirst = "slots.since-first" keeps RESET_HOLDS;
    }
}

/// The protocol within these bounds.
#[derive(Debug, Clone)]
pub struct Slots {
    rules: Rules<SlotRule>,
    number: u64,
    processes: usize,
    most: Faults,
}

/// How often something may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Faults {
    /// A request arrives.
    requests: u8,
    /// The store forgets.
    forgets: u8,
    /// The counter is reset.
    resets: u8,
    /// A call or its answer is lost.
    losses: u8,
    /// Half a lease passes.
    time: u8,
    /// A slot is renewed.
    renewals: u8,
    /// Slots are moved to a new holder.
    moves: u8,
}

/// A call under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Call {
    /// A slot for a request.
    Check(u64),
    /// Slots for requests in progress, under this new holder instead of an old one.
    Move(u64, u64, u8),
    /// A release or a renewal.
    Settle { holder: u64, least: u64, delta: i64, since: u64, sent: u8 },
}

/// The slots of a process under one holder.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Held {
    holder: u64,
    /// Slots that the process believes to hold.
    held: u8,
    /// Requests in progress, and those of them whose slots were lost or reset.
    live: u8,
    excused: u8,
    /// Those of them whose slots were reset.
    reset: u8,
    /// Whether slots were reset, or lost, of which the process has not learned.
    was_reset: bool,
    was_lost: bool,
    pending: u8,
    /// Those checks that were under way when the store forgot, or when the release of a slot that it forgot was sent.
    overtaken: u8,
    released: u8,
    uncertain: bool,
    moving: bool,
    since: u64,
    until: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
struct Process {
    current: u64,
    counters: Vec<Held>,
    /// Requests in progress whose slots were forgotten, by holder: excused or not.
    forgotten: Vec<(u64, bool)>,
    calls: Vec<Call>,
}

/// The state of store and processes.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    store: Records,
    processes: Vec<Process>,
    next_holder: u64,
    time: u8,
    left: Faults,
    has_lost: bool,
    false_loss: bool,
    reset_undone: bool,
    has_counted_again: bool,
    has_moved: bool,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A request arrives at a process.
    Request(usize),
    /// A request ends, of a counter of a process; an excused one, or another.
    End(usize, usize, bool),
    /// A request ends whose slot was forgotten.
    EndForgotten(usize, usize),
    /// A process sends its releases of a counter.
    Release(usize, usize),
    /// A process renews its slots of a counter.
    Renew(usize, usize),
    /// A process moves its slots of a counter to a new holder.
    Move(usize, usize),
    /// A process releases all that is left under a counter without requests.
    ReleaseAll(usize, usize),
    /// A call of a process arrives, and its answer too.
    Arrive(usize, usize),
    /// A call arrives, and its answer is lost.
    ArriveWithoutAnswer(usize),
    /// A call is lost.
    Lose(usize),
    /// Half a lease passes.
    Advance,
    /// The store forgets.
    Forget,
    /// The counter is reset.
    Reset,
}

impl Slots {
    fn spec(&self, holder: u64) -> Arc<LimitSpec> {
        let rate = Rate::new(
            Requests::new(self.number).expect("in range"),
            Period::from_millis(LEASE).expect("in range"),
            Algorithm::Concurrency { holder: Holder::new(holder).expect("in range") },
        );
        Arc::new(LimitSpec::new("n/p/l", vec![rate.expect("a valid rate")]))
    }

    fn now(state: &State) -> u64 {
        START + u64::from(state.time) * LEASE / 2 * 1000
    }

    /// Takes slots in the store. Returns whether there was room.
    fn take(&self, state: &mut State, holder: u64, slots: u64) -> bool {
        let counter = Counter { limit: self.spec(holder), key: KEY, cost: slots };
        let mut records = [std::mem::take(&mut state.store)];
        let response = decide(&[counter], &mut records, Self::now(state));
        [state.store] = records;
        response.admitted
    }

    /// A call arrives at the store; its answer arrives too, or is lost.
    fn arrive(&self, state: &mut State, n: usize, call: Call, is_answered: bool) {
        let now = Self::now(state);
        match call {
            Call::Check(holder) => {
                let is_granted = self.take(state, holder, 1);
                let (process, until) = (&mut state.processes[n], state.time + 2);
                let own = counter_of(process, holder, until);
                own.pending = own.pending.saturating_sub(1);
                // A release before it, of a slot that is lost, may free its slot.
                let is_excused = own.overtaken > 0 || own.was_reset;
                own.overtaken = own.overtaken.saturating_sub(1);
                match (is_answered, is_granted) {
                    (true, true) => {
                        own.held += 1;
                        own.live += u8::from(!is_excused);
                        own.excused += u8::from(is_excused);
                        own.since = own.since.min(now);
                    }
                    (true, false) => {}
                    (false, _) => own.uncertain = true,
                }
                self.tidy(state, n);
            }
            Call::Move(old, new, held) => {
                let is_granted = self.take(state, new, u64::from(held));
                let until = state.time + 2;
                let process = &mut state.processes[n];
                let own = counter_of(process, old, until);
                own.moving = false;
                if is_answered && is_granted {
                    (own.holder, own.since, own.uncertain, own.until) = (new, now, false, until);
                    own.released = 0;
                    state.has_moved = true;
                    if self.rules.has(SlotRule::MovesFirst) {
                        self.release_all(state, n, old);
                    }
                }
                self.tidy(state, n);
            }
            Call::Settle { holder, least, delta, since, sent } => {
                let settlement = Settlement {
                    limit: self.spec(holder),
                    key: KEY,
                    charged: since,
                    delta,
                    overflowed: false,
                    least,
                };
                let found = settle(&settlement, &mut state.store, now);
                if matches!(found, SlotsFound::Fewer(_)) {
                    state.false_loss |= !state.has_lost;
                    state.has_counted_again |= state.has_lost;
                }
                let process = &mut state.processes[n];
                let Some(own) = process.counters.iter_mut().find(|own| own.holder == holder) else {
                    if !is_answered && delta < 0 {
                        counter_of(process, holder, state.time + 2).uncertain = true;
                        self.tidy(state, n);
                    }
                    return;
                };
                if matches!(found, SlotsFound::Fewer(_)) && own.reset > 0 && delta == 0 && own.held > 0 {
                    state.reset_undone |= own.reset == own.held && !state.has_lost;
                }
                if !is_answered {
                    own.uncertain |= delta < 0;
                    self.tidy(state, n);
                    return;
                }
                own.until = own.until.max(sent + 2);
                match found {
                    SlotsFound::Enough => {}
                    _ if own.moving => {}
                    SlotsFound::Fewer(_) => (own.uncertain, own.was_lost) = (true, false),
                    SlotsFound::Reset if own.since == since => {
                        let live = (0..own.live).map(|_| (holder, false));
                        process.forgotten.extend(live.chain((0..own.excused).map(|_| (holder, true))));
                        process.forgotten.sort_unstable();
                        (own.held, own.live, own.excused, own.reset, own.released) = (0, 0, 0, 0, 0);
                        (own.since, own.uncertain, own.was_reset) = (u64::MAX, true, false);
                    }
                    SlotsFound::Reset => {}
                }
                self.tidy(state, n);
            }
        }
    }

    fn release(&self, state: &mut State, n: usize, at: usize) {
        let time = state.time;
        let own = &mut state.processes[n].counters[at];
        let released = std::mem::take(&mut own.released);
        let (holder, is_unused) = (own.holder, own.held == 0 && own.pending == 0);
        if own.was_lost {
            own.overtaken = own.pending;
        }
        if is_unused && own.uncertain {
            state.processes[n].counters.remove(at);
            self.release_all(state, n, holder);
            return;
        }
        let call = self.settle_call(own, -i64::from(released), released, time);
        let process = &mut state.processes[n];
        process.calls.push(call);
        if is_unused {
            process.counters.remove(at);
        }
    }

    fn release_all(&self, state: &mut State, n: usize, holder: u64) {
        let delta = -(MAX_CONCURRENT as i64);
        let call = Call::Settle { holder, least: 0, delta, since: u64::MAX, sent: state.time };
        state.processes[n].calls.push(call);
    }

    /// Chooses a new holder if the current one is uncertain, and forgets counters that hold nothing.
    fn tidy(&self, state: &mut State, n: usize) {
        let process = &mut state.processes[n];
        let is_current = |own: &Held| own.holder == process.current && own.uncertain;
        if process.counters.iter().any(is_current) && self.rules.has(SlotRule::NewHolder) {
            process.current = state.next_holder;
            state.next_holder += 1;
        }
        process.counters.retain(|own| {
            own.held > 0
                || own.pending > 0
                || own.released > 0
                || own.uncertain
                || own.moving
                || own.live + own.excused > 0
        });
    }
}

/// Returns the counter of a holder, and begins it if it is new.
fn counter_of(process: &mut Process, holder: u64, until: u8) -> &mut Held {
    let at = process.counters.iter().position(|own| own.holder == holder).unwrap_or_else(|| {
        process.counters.push(Held { holder, since: u64::MAX, until, ..Held::default() });
        process.counters.len() - 1
    });
    &mut process.counters[at]
}

impl Protocol for Slots {
    type Rule = SlotRule;

    fn with(&self, rules: Rules<SlotRule>) -> Self {
        Self { rules, ..self.clone() }
    }
}

impl Model for Slots {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let process = |n| Process { current: n as u64 + 1, ..Process::default() };
        vec![State {
            store: Records::new(),
            processes: (0..self.processes).map(process).collect(),
            next_holder: self.processes as u64 + 1,
            time: 0,
            left: self.most.clone(),
            has_lost: false,
            false_loss: false,
            reset_undone: false,
            has_counted_again: false,
            has_moved: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.left;
        for (n, process) in state.processes.iter().enumerate() {
            if left.requests > 0 {
                actions.push(Action::Request(n));
            }
            for (at, own) in process.counters.iter().enumerate() {
                if own.live > 0 {
                    actions.push(Action::End(n, at, false));
                }
                if own.excused > 0 {
                    actions.push(Action::End(n, at, true));
                }
                if own.moving {
                    continue;
                }
                if own.released > 0 {
                    actions.push(Action::Release(n, at));
                }
                if own.held > 0 && left.renewals > 0 {
                    actions.push(Action::Renew(n, at));
                }
                if own.uncertain && own.pending == 0 {
                    match own.held {
                        0 => actions.push(Action::ReleaseAll(n, at)),
                        _ if left.moves > 0 => actions.push(Action::Move(n, at)),
                        _ => {}
                    }
                }
            }
            for at in 0..process.forgotten.len() {
                actions.push(Action::EndForgotten(n, at));
            }
            if !process.calls.is_empty() {
                actions.push(Action::Arrive(n, 0));
                if !self.rules.has(SlotRule::InOrder) {
                    actions.extend((1..process.calls.len()).map(|at| Action::Arrive(n, at)));
                }
                if left.losses > 0 {
                    actions.extend([Action::ArriveWithoutAnswer(n), Action::Lose(n)]);
                }
            }
        }
        // No call takes half a lease, and no release waits for so long.
        let is_idle = |process: &Process| {
            process.calls.is_empty() && process.counters.iter().all(|own| own.released == 0)
        };
        if left.time > 0 && state.processes.iter().all(is_idle) {
            actions.push(Action::Advance);
        }
        if left.forgets > 0 {
            actions.push(Action::Forget);
        }
        if left.resets > 0 {
            actions.push(Action::Reset);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Request(n) => {
                state.left.requests -= 1;
                let (process, until) = (&mut state.processes[n], state.time + 2);
                let holder = process.current;
                let own = counter_of(process, holder, until);
                own.pending += 1;
                if own.released > 0 && !own.moving {
                    // A check takes along the releases before it.
                    let at = process.counters.iter().position(|own| own.holder == holder)?;
                    self.release(&mut state, n, at);
                }
                state.processes[n].calls.push(Call::Check(holder));
            }
            Action::End(n, at, is_excused) => {
                let own = &mut state.processes[n].counters[at];
                if is_excused {
                    own.excused -= 1;
                    own.reset = own.reset.min(own.excused);
                } else {
                    own.live -= 1;
                }
                own.held = own.held.saturating_sub(1);
                own.released += 1;
            }
            Action::EndForgotten(n, at) => {
                let process = &mut state.processes[n];
                let (holder, _) = process.forgotten.remove(at);
                if !self.rules.has(SlotRule::EndOfReset)
                    && let Some(own) = process.counters.iter_mut().find(|own| own.holder == holder)
                {
                    own.held = own.held.saturating_sub(1);
                    own.released += 1;
                }
            }
            Action::Release(n, at) => self.release(&mut state, n, at),
            Action::Renew(n, at) => {
                state.left.renewals -= 1;
                let call = self.settle_call(&state.processes[n].counters[at], 0, 0, state.time);
                state.processes[n].calls.push(call);
            }
            Action::Move(n, at) => {
                let new = state.next_holder;
                state.next_holder += 1;
                state.left.moves -= 1;
                let own = &mut state.processes[n].counters[at];
                own.moving = true;
                let (old, held) = (own.holder, own.held);
                if !self.rules.has(SlotRule::MovesFirst) {
                    self.release_all(&mut state, n, old);
                }
                state.processes[n].calls.push(Call::Move(old, new, held));
            }
            Action::ReleaseAll(n, at) => {
                let own = state.processes[n].counters.remove(at);
                self.release_all(&mut state, n, own.holder);
            }
            Action::Arrive(n, at) => {
                let call = state.processes[n].calls.remove(at);
                self.arrive(&mut state, n, call, true);
            }
            Action::ArriveWithoutAnswer(n) => {
                state.left.losses -= 1;
                let call = state.processes[n].calls.remove(0);
                self.arrive(&mut state, n, call, false);
            }
            Action::Lose(n) => {
                state.left.losses -= 1;
                let until = state.time + 2;
                let process = &mut state.processes[n];
                match process.calls.remove(0) {
                    Call::Check(holder) => {
                        let own = counter_of(process, holder, until);
                        own.pending = own.pending.saturating_sub(1);
                        own.overtaken = own.overtaken.saturating_sub(1);
                        own.uncertain = true;
                    }
                    Call::Move(old, ..) => counter_of(process, old, until).moving = false,
                    Call::Settle { holder, delta, .. } if delta < 0 => {
                        counter_of(process, holder, until).uncertain = true;
                    }
                    Call::Settle { .. } => {}
                }
                self.tidy(&mut state, n);
            }
            Action::Advance => {
                state.left.time -= 1;
                state.time += 1;
                let time = state.time;
                for n in 0..self.processes {
                    for own in &mut state.processes[n].counters {
                        if own.until <= time && own.held > 0 {
                            // They may be expired in the store.
                            own.uncertain = true;
                            own.excused += std::mem::take(&mut own.live);
                            state.has_lost = true;
                        }
                    }
                    self.tidy(&mut state, n);
                }
            }
            Action::Forget => {
                state.left.forgets -= 1;
                state.store = Records::new();
                state.has_lost = true;
                excuse(&mut state, false);
            }
            Action::Reset => {
                state.left.resets -= 1;
                state.store = reset(&self.spec(1), &state.store, Self::now(&state));
                excuse(&mut state, true);
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_MORE, |model: &Self, state: &State| {
                let of = |process: &Process| {
                    let forgotten =
                        process.forgotten.iter().filter(|(_, is_excused)| !is_excused).count() as u64;
                    process.counters.iter().map(|own| u64::from(own.live)).sum::<u64>() + forgotten
                };
                state.processes.iter().map(of).sum::<u64>() <= model.number
            }),
            Property::always(NO_FALSE_LOSS, |_, state: &State| !state.false_loss),
            Property::always(RESET_HOLDS, |_, state: &State| !state.reset_undone),
            Property::sometimes(
                "slots that were lost are counted again, if some are",
                |model: &Self, state: &State| model.most.forgets == 0 || state.has_counted_again,
            ),
            Property::sometimes(
                "slots move to a new holder, after a call without an answer",
                |model: &Self, state: &State| model.most.losses == 0 || state.has_moved,
            ),
            Property::sometimes("all slots are held by both processes", |model: &Self, state: &State| {
                let held =
                    |process: &Process| process.counters.iter().map(|own| u64::from(own.live)).sum::<u64>();
                state.processes.iter().all(|process| held(process) > 0)
                    && state.processes.iter().map(held).sum::<u64>() == model.number
            }),
        ]
    }
}

impl Slots {
    /// Returns a release or a renewal of a counter.
    fn settle_call(&self, own: &Held, delta: i64, released: u8, time: u8) -> Call {
        let least = if self.rules.has(SlotRule::TellsLeast) { own.held + own.released + released } else { 0 };
        let since = if self.rules.has(SlotRule::SinceFirst) { own.since } else { u64::MAX / 2 };
        Call::Settle { holder: own.holder, least: u64::from(least), delta, since, sent: time }
    }
}

/// Notes that the slots of all requests in progress are lost, or were reset.
fn excuse(state: &mut State, is_reset: bool) {
    for process in &mut state.processes {
        for own in &mut process.counters {
            own.excused += std::mem::take(&mut own.live);
            own.overtaken = own.pending;
            own.was_lost = true;
            if is_reset {
                (own.reset, own.was_reset) = (own.excused, true);
            }
        }
        for (_, is_excused) in &mut process.forgotten {
            *is_excused = true;
        }
    }
}

#[cfg(test)]
mod tests;
