//! Epochs and assertion: what is restored after the store forgot.
//!
//! A partition of the store has an epoch, a random number beside its counters. A store that finds none has forgotten: it draws
//! another one, and admits nothing until those who asked before have said what they know. A counter is the largest total asserted
//! from earlier epochs, and what was charged in this one.
//!
//! The store forgets all, or the epoch alone, or fails over to a replica that lags; somebody writes another epoch; an operator resets
//! the counter. Assertions arrive in any order, twice, late or never; answers are lost; processes die or are cut off.

use stateright::{Model, Property};

use crate::check::Protocol;
use crate::network::Network;
use crate::rules::{Rules, rules};

const NEVER_MORE: &str = "no more than N are admitted, beside those of whom nobody connected knew";
const NEVER_COUNTED_TWICE: &str = "a counter never counts more than was charged to it";

rules! {
    /// Obeyed by store and processes.
    EpochRule {
        /// Totals that are asserted are merged by maximum.
        MergedByMaximum = "epoch.merged-by-maximum" keeps NEVER_COUNTED_TWICE;
        /// A record says in which epoch its charges count. In another epoch they are an earlier total.
        RecordNamesEpoch = "epoch.record-names-epoch" keeps NEVER_COUNTED_TWICE;
        /// A total is asserted once more after a loss with what was charged since the loss before it.
        KnownAddsEarlier = "epoch.known-adds-earlier" keeps NEVER_MORE;
        /// The call that finds another epoch admits nothing.
        FindingAdmitsNothing = "epoch.finding-admits-nothing" keeps NEVER_MORE;
        /// Nothing is admitted until everybody connected has had the time to assert.
        WaitsForAssertions = "epoch.waits-for-assertions" keeps NEVER_MORE;
        /// A process without traffic asks for the epoch, and asserts, too.
        IdleAsk = "epoch.idle-ask" keeps NEVER_MORE;
        /// A call says the total that its process knows. A store that has less has forgotten.
        CallSaysLeast = "epoch.call-says-least" keeps NEVER_MORE;
        /// Each partition has an epoch of its own.
        OfPartition = "epoch.of-partition" keeps NEVER_MORE;
        /// A total names the reset after which it was counted; one of before is ignored.
        TotalNamesReset = "epoch.total-names-reset" keeps NEVER_COUNTED_TWICE;
        /// Resets are asserted by who ordered them.
        ResetsAsserted = "epoch.resets-asserted" keeps NEVER_COUNTED_TWICE;
    }
}

/// The protocol within these bounds.
#[derive(Debug, Clone)]
pub struct Epochs {
    rules: Rules<EpochRule>,
    /// Number of requests in a window.
    number: u8,
    processes: usize,
    partitions: usize,
    most: Faults,
}

/// How often something may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Faults {
    /// A partition forgets everything.
    forgets: u8,
    /// The epoch alone is evicted, deleted or overwritten.
    false_alarms: u8,
    /// A replica that lags becomes the master.
    failovers: u8,
    /// The counter is reset.
    resets: u8,
    /// An answer is lost.
    lost_answers: u8,
    /// A process dies.
    deaths: u8,
    /// A process is cut off for some time.
    cuts: u8,
    /// An assertion arrives twice.
    duplicates: u8,
}

/// The counter of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Counter {
    /// Epoch of the charges.
    epoch: u8,
    /// Number of the last reset.
    reset: u8,
    /// Largest total asserted from earlier epochs.
    asserted: u8,
    /// Charges in this epoch.
    charged: u8,
}

impl Counter {
    fn total(self) -> u8 {
        self.asserted + self.charged
    }
}

/// A partition on its master.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Partition {
    /// Its epoch; `None` if it has none.
    epoch: Option<u8>,
    /// Whether it waits for assertions.
    waits: bool,
    counter: Counter,
    /// State of its replica.
    replica: Option<(Option<u8>, Counter)>,
    /// Requests admitted since the last reset, and all charges since then.
    admitted: u8,
    charged: u8,
    /// Whether a replica that lagged has become the master in this epoch.
    lags: bool,
    /// Requests admitted of which nobody connected knew when they were forgotten.
    unknown: u8,
}

/// Knowledge of a process about the counter of a partition.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Known {
    epoch: u8,
    reset: u8,
    /// Largest total of earlier epochs.
    earlier: u8,
    total: u8,
    /// Largest total that the store has said in this epoch. It may not have been told of the earlier ones yet.
    said: u8,
    /// Whether the total of earlier epochs has been asserted in this one.
    asserted: bool,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Process {
    known: Vec<Known>,
    is_cut: bool,
    is_dead: bool,
}

/// An assertion under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Assertion {
    process: usize,
    partition: usize,
    /// The epoch that the process has found.
    epoch: u8,
    reset: u8,
    total: u8,
}

/// The state of partitions, processes and network.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    partitions: Vec<Partition>,
    processes: Vec<Process>,
    network: Network<Assertion>,
    /// Number of the last reset, which the operator knows, and whether this epoch has been told of it.
    reset: u8,
    reset_is_told: bool,
    next_epoch: u8,
    left: Faults,
    has_restored: bool,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A process asks for one request, and the answer arrives.
    Ask(usize, usize),
    /// A process asks for one request, and the answer is lost.
    AskWithoutAnswer(usize, usize),
    /// A process without traffic asks for the epoch.
    AskIdle(usize, usize),
    /// An assertion arrives.
    Arrive(usize),
    /// An assertion arrives and is sent again.
    ArriveTwice(usize),
    /// A partition has waited for assertions.
    Waited(usize),
    /// The operator asserts its last reset.
    AssertReset(usize),
    /// A partition forgets everything.
    Forget(usize),
    /// A partition loses its epoch, or somebody writes another one.
    FalseAlarm(usize, Option<u8>),
    /// The replica of a partition is brought up to date.
    Replicate(usize),
    /// It becomes the master.
    FailOver(usize),
    /// The operator resets the counter.
    Reset,
    /// A process is cut off.
    Cut(usize),
    /// It is connected again.
    Heal(usize),
    /// A process dies.
    Die(usize),
}

impl Epochs {
    /// Returns the partition whose epoch a partition has.
    fn of_epoch(&self, partition: usize) -> usize {
        if self.rules.has(EpochRule::OfPartition) { partition } else { 0 }
    }

    /// Begins another epoch.
    fn begin_epoch(&self, state: &mut State, partition: usize) {
        let at = self.of_epoch(partition);
        state.partitions[at].epoch = Some(state.next_epoch);
        state.next_epoch += 1;
        self.begin_waiting(state, at);
    }

    fn begin_waiting(&self, state: &mut State, at: usize) {
        state.reset_is_told = state.reset == 0;
        state.partitions[at].lags = false;
        for (n, partition) in state.partitions.iter_mut().enumerate() {
            if self.of_epoch(n) == at {
                partition.waits = self.rules.has(EpochRule::WaitsForAssertions);
            }
        }
    }

    /// Returns the epoch of a partition, with a counter that counts in it, and whether this call has found it to be another one.
    fn enter(&self, state: &mut State, partition: usize) -> (u8, bool) {
        let mut is_new = false;
        if state.partitions[self.of_epoch(partition)].epoch.is_none() {
            self.begin_epoch(state, partition);
            is_new = true;
        }
        let epoch = state.partitions[self.of_epoch(partition)].epoch.unwrap_or_default();
        let own = &mut state.partitions[partition];
        if own.counter == Counter::default() {
            own.counter.epoch = epoch;
        } else if own.counter.epoch != epoch {
            if !is_new && self.rules.has(EpochRule::RecordNamesEpoch) {
                // Somebody has written another epoch.
                is_new = true;
                self.begin_waiting(state, self.of_epoch(partition));
            }
            let counter = &mut state.partitions[partition].counter;
            if self.rules.has(EpochRule::RecordNamesEpoch) {
                (counter.asserted, counter.charged) = (counter.total(), 0);
            }
            counter.epoch = epoch;
        }
        (epoch, is_new)
    }

    /// Merges a total of earlier epochs, counted after this reset.
    fn merge(&self, counter: &mut Counter, reset: u8, total: u8) {
        if !self.rules.has(EpochRule::TotalNamesReset) || counter.reset == reset {
            counter.asserted = if self.rules.has(EpochRule::MergedByMaximum) {
                counter.asserted.max(total)
            } else {
                counter.asserted + total
            };
        } else if counter.reset < reset {
            (counter.reset, counter.asserted) = (reset, total);
        }
    }

    /// A process asks, for a request or only for the epoch. Returns whether the request was charged.
    fn ask(&self, state: &mut State, process: usize, partition: usize, is_idle: bool, is_answered: bool) {
        let waited = state.partitions[partition].waits;
        let (mut epoch, mut is_new) = self.enter(state, partition);
        let known = state.processes[process].known[partition];
        let counter = state.partitions[partition].counter;
        let has_less = known.epoch == epoch
            && known.said > 0
            && (counter.reset < known.reset || counter.reset == known.reset && counter.total() < known.said);
        if has_less && !is_new && self.rules.has(EpochRule::CallSaysLeast) {
            self.begin_epoch(state, partition);
            is_new = true;
            epoch = self.enter(state, partition).0;
        }
        let waits = if is_new { self.rules.has(EpochRule::FindingAdmitsNothing) } else { waited };
        let own = &mut state.partitions[partition];
        if !waits && !is_idle && own.counter.total() < self.number {
            // Whoever knows no more than a replica that lags cannot tell that it does.
            own.unknown += u8::from(is_answered && own.lags && known.said <= own.counter.total());
            own.counter.charged += 1;
            own.charged += 1;
            own.admitted += u8::from(is_answered);
        }
        if is_answered {
            let counter = own.counter;
            let known = &mut state.processes[process].known[partition];
            if known.epoch != epoch {
                *known = Known { epoch, earlier: known.total, said: 0, asserted: false, ..*known };
                let (reset, total) = (known.reset, known.earlier);
                state.network.send(Assertion { process, partition, epoch, reset, total });
            }
            self.learn(&mut state.processes[process].known[partition], counter);
        }
    }

    /// A process learns from an answer.
    fn learn(&self, known: &mut Known, counter: Counter) {
        if counter.reset > known.reset {
            (known.reset, known.earlier, known.total, known.said) = (counter.reset, 0, 0, 0);
        }
        let earlier = match counter.reset == known.reset {
            // The store does not know of the reset any more.
            false => return,
            true if self.rules.has(EpochRule::KnownAddsEarlier) => known.earlier.max(counter.asserted),
            true => counter.asserted,
        };
        known.said = counter.total();
        known.total = match self.rules.has(EpochRule::KnownAddsEarlier) {
            true => known.total.max(earlier + counter.charged),
            false => earlier + counter.charged,
        };
    }

    /// Reports whether everybody connected has asserted what it knows in the epoch of a partition.
    fn all_have_asserted(&self, state: &State, partition: usize) -> bool {
        let epoch = state.partitions[self.of_epoch(partition)].epoch;
        let has = |process: &Process| {
            let known = process.known[partition];
            // Nobody who has never asked knows anything.
            process.is_cut
                || process.is_dead
                || known.total == 0
                || (Some(known.epoch) == epoch && known.asserted)
        };
        let is_connected = |process: &Process| {
            let known = process.known[partition];
            self.rules.has(EpochRule::IdleAsk) || Some(known.epoch) == epoch
        };
        let connected = state.processes.iter().filter(|process| is_connected(process));
        connected.into_iter().all(has) && (state.reset_is_told || !self.rules.has(EpochRule::ResetsAsserted))
    }

    /// Notes which admissions neither the store nor anybody connected knows, when a process is gone.
    fn note_all_unknown(&self, state: &mut State) {
        for partition in 0..self.partitions {
            let left = state.partitions[partition].counter;
            self.note_unknown(state, partition, left);
        }
    }

    /// Notes which admissions nobody connected knows, when a partition forgets.
    fn note_unknown(&self, state: &mut State, partition: usize, left: Counter) {
        let connected = state.processes.iter().filter(|process| !process.is_cut && !process.is_dead);
        let of_reset = |known: Known| if known.reset == state.reset { known.total } else { 0 };
        let known = connected.map(|process| of_reset(process.known[partition])).max().unwrap_or(0);
        let left = if left.reset == state.reset { left.total() } else { 0 };
        let own = &mut state.partitions[partition];
        own.unknown = own.unknown.max(own.admitted.saturating_sub(known.max(left)));
    }
}

impl Protocol for Epochs {
    type Rule = EpochRule;

    fn with(&self, rules: Rules<EpochRule>) -> Self {
        Self { rules, ..self.clone() }
    }
}

impl Model for Epochs {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let first = Partition {
            epoch: Some(1),
            counter: Counter { epoch: 1, ..Counter::default() },
            ..Partition::default()
        };
        let known = vec![Known { epoch: 1, asserted: true, ..Known::default() }; self.partitions];
        vec![State {
            partitions: vec![first; self.partitions],
            processes: vec![Process { known, is_cut: false, is_dead: false }; self.processes],
            network: Network::default(),
            reset: 0,
            reset_is_told: true,
            next_epoch: 2,
            left: self.most.clone(),
            has_restored: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let left = &state.left;
        for (n, process) in state.processes.iter().enumerate() {
            if process.is_dead {
                continue;
            }
            if process.is_cut {
                actions.push(Action::Heal(n));
                continue;
            }
            for partition in 0..self.partitions {
                actions.extend([Action::Ask(n, partition), Action::AskIdle(n, partition)]);
                if left.lost_answers > 0 {
                    actions.push(Action::AskWithoutAnswer(n, partition));
                }
            }
            if left.cuts > 0 {
                actions.push(Action::Cut(n));
            }
            if left.deaths > 0 {
                actions.push(Action::Die(n));
            }
        }
        for (n, _) in state.network.messages() {
            actions.push(Action::Arrive(n));
            if left.duplicates > 0 {
                actions.push(Action::ArriveTwice(n));
            }
        }
        for (n, partition) in state.partitions.iter().enumerate() {
            if partition.waits && self.all_have_asserted(state, n) {
                actions.push(Action::Waited(n));
            }
            if state.reset > 0 && !state.reset_is_told {
                actions.push(Action::AssertReset(n));
            }
            if left.forgets > 0 {
                actions.push(Action::Forget(n));
            }
            if left.false_alarms > 0 {
                actions.push(Action::FalseAlarm(n, None));
                if partition.counter != Counter::default() {
                    actions.push(Action::FalseAlarm(n, Some(state.next_epoch)));
                }
            }
            if left.failovers > 0 {
                actions.push(Action::Replicate(n));
                if partition.replica.is_some() {
                    actions.push(Action::FailOver(n));
                }
            }
        }
        if left.resets > 0 {
            actions.push(Action::Reset);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Ask(process, partition) => self.ask(&mut state, process, partition, false, true),
            Action::AskWithoutAnswer(process, partition) => {
                state.left.lost_answers -= 1;
                self.ask(&mut state, process, partition, false, false);
            }
            Action::AskIdle(process, partition) => self.ask(&mut state, process, partition, true, true),
            Action::Arrive(at) | Action::ArriveTwice(at) => {
                let assertion = state.network.take(at);
                if matches!(action, Action::ArriveTwice(_)) {
                    state.left.duplicates -= 1;
                    state.network.send(assertion);
                }
                let Assertion { process, partition, epoch, reset, total } = assertion;
                let (now, _) = self.enter(&mut state, partition);
                // A total of the present epoch would count its charges twice.
                if now == epoch {
                    self.merge(&mut state.partitions[partition].counter, reset, total);
                    state.has_restored |= total > 0;
                    let known = &mut state.processes[process].known[partition];
                    known.asserted |= known.epoch == epoch;
                }
            }
            Action::Waited(partition) => state.partitions[partition].waits = false,
            Action::AssertReset(partition) => {
                let (_, is_new) = self.enter(&mut state, partition);
                let counter = &mut state.partitions[partition].counter;
                if counter.reset < state.reset {
                    (counter.reset, counter.asserted) = (state.reset, 0);
                }
                state.reset_is_told = !is_new;
            }
            Action::Forget(partition) => {
                state.left.forgets -= 1;
                self.note_unknown(&mut state, partition, Counter::default());
                let own = &mut state.partitions[partition];
                (own.epoch, own.counter, own.replica, own.waits) = (None, Counter::default(), None, false);
            }
            Action::FalseAlarm(partition, epoch) => {
                state.left.false_alarms -= 1;
                state.partitions[partition].epoch = epoch;
                state.next_epoch += 1;
            }
            Action::Replicate(partition) => {
                let own = &mut state.partitions[partition];
                own.replica = Some((own.epoch, own.counter));
            }
            Action::FailOver(partition) => {
                state.left.failovers -= 1;
                let (epoch, counter) = state.partitions[partition].replica.take()?;
                self.note_unknown(&mut state, partition, counter);
                let own = &mut state.partitions[partition];
                (own.epoch, own.counter, own.waits, own.lags) = (epoch, counter, false, true);
            }
            Action::Reset => {
                state.left.resets -= 1;
                state.reset += 1;
                for partition in 0..self.partitions {
                    let (epoch, _) = self.enter(&mut state, partition);
                    let own = &mut state.partitions[partition];
                    own.counter = Counter { epoch, reset: state.reset, ..Counter::default() };
                    (own.admitted, own.charged, own.unknown) = (0, 0, 0);
                }
                state.reset_is_told = true;
            }
            Action::Cut(n) => {
                state.left.cuts -= 1;
                state.processes[n].is_cut = true;
                self.note_all_unknown(&mut state);
            }
            Action::Heal(n) => state.processes[n].is_cut = false,
            Action::Die(n) => {
                state.left.deaths -= 1;
                state.processes[n].is_dead = true;
                self.note_all_unknown(&mut state);
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_MORE, |model: &Self, state: &State| {
                state.partitions.iter().all(|own| own.admitted <= model.number + own.unknown)
            }),
            Property::always(NEVER_COUNTED_TWICE, |_, state: &State| {
                // While it waits, an assertion of before a reset may be there, and the reset still come.
                state.partitions.iter().all(|own| own.waits || own.counter.total() <= own.charged)
            }),
            Property::sometimes(
                "a total is restored and the rest of N is admitted",
                |model: &Self, state: &State| {
                    state.has_restored && state.partitions[0].admitted == model.number
                },
            ),
            Property::sometimes("a store that has forgotten ends its wait", |_, state: &State| {
                state.next_epoch > 2 && !state.partitions[0].waits && state.partitions[0].counter.total() > 0
            }),
        ]
    }
}

#[cfg(test)]
mod tests;
