//! The relay: sidecars ask replicas of the service, and these ask the store.
//!
//! A frame is cut with its connection, at any point of its way: it may be executed later nevertheless. A check that was cut is asked once
//! more, of any replica. A settlement gives back what a request was charged, and is sent until it is answered. Replicas die, and
//! leave in an orderly way. A check is charged as any other (see [`crate::leases`]), so here the store has one number.

use stateright::{Model, Property};

use crate::check::Protocol;
use crate::network::Network;
use crate::rules::{Rules, rules};

const ALL_COUNTED: &str = "every request that is admitted and not given back is counted";
const TWICE_AT_MOST: &str = "a request is charged twice at most";
const DRAIN_CUTS_NOTHING: &str = "a replica that leaves cuts no frame";

/// Steps of time for which the store remembers the ids of settlements.
const REMEMBERED: u8 = 2;
/// Steps of time, since a settlement was sent first, after which the store refuses it.
const REFUSED_AFTER: u8 = 1;

rules! {
    /// Obeyed by sidecars, replicas and store.
    RelayRule {
        /// The ids of settlements are in the store, beside the counters, and not in a replica.
        IdsInStore = "relay.ids-in-store" keeps ALL_COUNTED;
        /// A settlement that is older than the memory of ids is refused. It says when it was sent first.
        OldRefused = "relay.old-refused" keeps ALL_COUNTED;
        /// A settlement that is sent again keeps its id.
        KeepsId = "relay.keeps-id" keeps ALL_COUNTED;
        /// A check is asked once more, and then `onStoreFailure` decides.
        AskedOnceMore = "relay.asked-once-more" keeps TWICE_AT_MOST;
        /// A replica that leaves answers the frames that it has.
        DrainAnswers = "relay.drain-answers" keeps DRAIN_CUTS_NOTHING;
        /// A replica that leaves says so, and goes when nobody sends to it any more.
        DrainAnnounced = "relay.drain-announced" keeps DRAIN_CUTS_NOTHING;
    }
}

/// The protocol within these bounds.
#[derive(Debug, Clone)]
pub struct Relay {
    rules: Rules<RelayRule>,
    number: u8,
    requests: usize,
    most: Faults,
}

/// How often something may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Faults {
    /// A connection is cut.
    cuts: u8,
    /// A replica dies.
    deaths: u8,
    /// A replica leaves.
    leaves: u8,
    /// Time goes on.
    time: u8,
}

/// The point that a frame has reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Place {
    /// On its way to the replica.
    Sent,
    /// In the replica.
    InReplica,
    /// On its way to the store, which executes it whatever becomes of the replica.
    InStore,
    /// The answer is in the replica: the request is admitted.
    Answered(bool),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Kind {
    Check,
    /// Gives back what was charged. The id, and the time at which it was sent first, as the sidecar estimates the store's.
    Settle(u8, u8),
}

/// A frame.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Frame {
    request: usize,
    replica: usize,
    kind: Kind,
    place: Place,
    /// Whether its connection was cut, so that nobody waits for the answer.
    is_cut: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    New,
    /// The number of times that it was asked.
    Asked(u8),
    /// Admitted by the relay.
    Admitted,
    /// Denied, or left to `onStoreFailure`.
    Ended,
    /// Its charge is to be given back: the id, and when that was sent first.
    GivingBack(u8, u8),
    GivenBack,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Life {
    Up,
    Leaving,
    Gone,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Replica {
    life: Life,
    /// Settlements that it has carried out, if it remembers them.
    remembered: Vec<u8>,
}

/// The state of sidecars, replicas and store.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    used: u8,
    /// Ids of settlements, and when they were carried out.
    remembered: Vec<(u8, u8)>,
    /// How often each request was charged.
    charges: Vec<u8>,
    requests: Vec<Phase>,
    replicas: Vec<Replica>,
    frames: Network<Frame>,
    next_id: u8,
    now: u8,
    left: Faults,
    was_cut_by_drain: bool,
    has_settled_again: bool,
    has_refused: bool,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A request is asked of a replica.
    Ask(usize, usize),
    /// An admitted request is to be given back.
    GiveBack(usize),
    /// Its settlement is sent to a replica.
    Settle(usize, usize),
    /// A frame goes on.
    GoOn(usize),
    /// The connection of a frame is cut.
    Cut(usize),
    /// A replica dies.
    Die(usize),
    /// A replica begins to leave.
    Leave(usize),
    /// A replica that leaves is gone.
    Go(usize),
    /// Time goes on.
    Advance,
}

impl Relay {
    /// Nobody waits for the answer to a frame any more.
    fn cut(&self, state: &mut State, frame: Frame) {
        if let (Kind::Check, Phase::Asked(asked)) = (frame.kind, state.requests[frame.request])
            && asked > 1
            && self.rules.has(RelayRule::AskedOnceMore)
        {
            state.requests[frame.request] = Phase::Ended;
        }
    }

    fn execute(&self, state: &mut State, frame: Frame) -> Place {
        match frame.kind {
            Kind::Check => {
                let is_admitted = state.used < self.number;
                if is_admitted {
                    state.used += 1;
                    state.charges[frame.request] += 1;
                }
                Place::Answered(is_admitted)
            }
            Kind::Settle(id, sent) => {
                let now = state.now;
                state.remembered.retain(|(_, at)| now < at + REMEMBERED);
                let known = match self.rules.has(RelayRule::IdsInStore) {
                    true => state.remembered.iter().any(|(other, _)| *other == id),
                    false => state.replicas[frame.replica].remembered.contains(&id),
                };
                let is_old = now > sent + REFUSED_AFTER && self.rules.has(RelayRule::OldRefused);
                state.has_settled_again |= known;
                state.has_refused |= is_old;
                if !known && !is_old {
                    state.used = state.used.saturating_sub(1);
                    state.remembered.push((id, now));
                    state.remembered.sort_unstable();
                    state.replicas[frame.replica].remembered.push(id);
                }
                Place::Answered(true)
            }
        }
    }

    fn answer(&self, state: &mut State, frame: Frame, is_admitted: bool) {
        let request = &mut state.requests[frame.request];
        match (*request, frame.kind) {
            (Phase::Asked(_), Kind::Check) => {
                *request = if is_admitted { Phase::Admitted } else { Phase::Ended }
            }
            (Phase::GivingBack(..), Kind::Settle(..)) => *request = Phase::GivenBack,
            _ => {}
        }
    }
}

impl Protocol for Relay {
    type Rule = RelayRule;

    fn with(&self, rules: Rules<RelayRule>) -> Self {
        Self { rules, ..self.clone() }
    }
}

impl Model for Relay {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            used: 0,
            remembered: vec![],
            charges: vec![0; self.requests],
            requests: vec![Phase::New; self.requests],
            replicas: vec![Replica { life: Life::Up, remembered: vec![] }; 2],
            frames: Network::default(),
            next_id: 0,
            now: 0,
            left: self.most.clone(),
            was_cut_by_drain: false,
            has_settled_again: false,
            has_refused: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        // A sidecar sends to a replica until it hears that it leaves.
        let takes = |replica: &Replica| match replica.life {
            Life::Up => true,
            Life::Leaving => !self.rules.has(RelayRule::DrainAnnounced),
            Life::Gone => false,
        };
        let replicas =
            || state.replicas.iter().enumerate().filter(|(_, replica)| takes(replica)).map(|(n, _)| n);
        for (n, phase) in state.requests.iter().enumerate() {
            let waits = state.frames.messages().any(|(_, frame)| frame.request == n && !frame.is_cut);
            // Requests are alike: one begins after the one before it.
            let begins = *phase == Phase::New && (n == 0 || state.requests[n - 1] != Phase::New);
            match phase {
                _ if waits => {}
                // Replicas are alike, too: the first request goes to the first one.
                Phase::New if begins => {
                    actions.extend(
                        replicas().take(if n == 0 { 1 } else { 2 }).map(|replica| Action::Ask(n, replica)),
                    );
                }
                Phase::Asked(asked) if *asked < 3 => {
                    actions.extend(replicas().map(|replica| Action::Ask(n, replica)));
                }
                Phase::Admitted => actions.push(Action::GiveBack(n)),
                Phase::GivingBack(..) => actions.extend(replicas().map(|replica| Action::Settle(n, replica))),
                _ => {}
            }
        }
        for (n, frame) in state.frames.messages() {
            actions.push(Action::GoOn(n));
            if state.left.cuts > 0 && !frame.is_cut {
                actions.push(Action::Cut(n));
            }
        }
        for (n, replica) in state.replicas.iter().enumerate() {
            let is_other_up = state.replicas[1 - n].life == Life::Up;
            match replica.life {
                Life::Up if is_other_up => {
                    if state.left.deaths > 0 {
                        actions.push(Action::Die(n));
                    }
                    if state.left.leaves > 0 {
                        actions.push(Action::Leave(n));
                    }
                }
                Life::Leaving => {
                    let waits = |frame: &Frame| match frame.place {
                        Place::Sent => self.rules.has(RelayRule::DrainAnnounced),
                        _ => self.rules.has(RelayRule::DrainAnswers),
                    };
                    let own = |frame: &Frame| frame.replica == n && !frame.is_cut;
                    if !state.frames.messages().any(|(_, frame)| own(frame) && waits(frame)) {
                        actions.push(Action::Go(n));
                    }
                }
                _ => {}
            }
        }
        if state.left.time > 0 {
            actions.push(Action::Advance);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Ask(request, replica) => {
                let asked = if let Phase::Asked(asked) = state.requests[request] { asked } else { 0 };
                state.requests[request] = Phase::Asked(asked + 1);
                let frame = Frame { request, replica, kind: Kind::Check, place: Place::Sent, is_cut: false };
                state.frames.send(frame);
            }
            Action::GiveBack(request) => {
                state.requests[request] = Phase::GivingBack(state.next_id, state.now);
                state.next_id += 1;
            }
            Action::Settle(request, replica) => {
                let Phase::GivingBack(mut id, sent) = state.requests[request] else { return None };
                if !self.rules.has(RelayRule::KeepsId) {
                    id = state.next_id;
                    state.next_id += 1;
                }
                let kind = Kind::Settle(id, sent);
                state.frames.send(Frame { request, replica, kind, place: Place::Sent, is_cut: false });
            }
            Action::GoOn(at) => {
                let frame = state.frames.take(at);
                let place = match frame.place {
                    Place::Sent if state.replicas[frame.replica].life == Life::Gone => return None,
                    Place::Sent => Place::InReplica,
                    Place::InReplica => Place::InStore,
                    Place::InStore => self.execute(&mut state, frame),
                    Place::Answered(is_admitted) => {
                        self.answer(&mut state, frame, is_admitted);
                        return Some(state);
                    }
                };
                // The answer to a frame that was cut reaches nobody.
                if !(frame.is_cut && matches!(place, Place::Answered(_))) {
                    state.frames.send(Frame { place, ..frame });
                }
            }
            Action::Cut(at) => {
                state.left.cuts -= 1;
                let frame = state.frames.take(at);
                self.cut(&mut state, frame);
                if !matches!(frame.place, Place::Answered(_)) {
                    state.frames.send(Frame { is_cut: true, ..frame });
                }
            }
            Action::Die(n) | Action::Go(n) => {
                let is_drain = state.replicas[n].life == Life::Leaving;
                if !is_drain {
                    state.left.deaths -= 1;
                }
                state.replicas[n] = Replica { life: Life::Gone, remembered: vec![] };
                let lost: Vec<Frame> = state
                    .frames
                    .messages()
                    .map(|(_, frame)| *frame)
                    .filter(|frame| frame.replica == n)
                    .collect();
                state.frames.retain(|frame| frame.replica != n || frame.place == Place::InStore);
                state.frames.map(|frame| Frame { is_cut: frame.is_cut || frame.replica == n, ..frame });
                for frame in lost.into_iter().filter(|frame| !frame.is_cut) {
                    state.was_cut_by_drain |= is_drain;
                    self.cut(&mut state, frame);
                }
            }
            Action::Leave(n) => {
                state.left.leaves -= 1;
                state.replicas[n].life = Life::Leaving;
            }
            Action::Advance => {
                state.left.time -= 1;
                state.now += 1;
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(ALL_COUNTED, |_, state: &State| {
                state.requests.iter().filter(|phase| **phase == Phase::Admitted).count()
                    <= usize::from(state.used)
            }),
            Property::always(TWICE_AT_MOST, |_, state: &State| {
                state.charges.iter().all(|charges| *charges <= 2)
            }),
            Property::always(DRAIN_CUTS_NOTHING, |_, state: &State| !state.was_cut_by_drain),
            Property::sometimes("a check that was cut is charged twice", |_, state: &State| {
                state.charges.contains(&2)
            }),
            Property::sometimes("a settlement arrives again", |_, state: &State| state.has_settled_again),
            Property::sometimes("a settlement is refused", |_, state: &State| state.has_refused),
            Property::sometimes(
                "a request is admitted after another was given back",
                |model: &Self, state: &State| {
                    state.requests.contains(&Phase::GivenBack) && state.used == model.number
                },
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{holds, needs_each_rule};

    fn relay(number: u8, requests: usize, most: Faults) -> Relay {
        Relay { rules: Rules::all(), number, requests, most }
    }

    fn cut() -> Relay {
        relay(1, 2, Faults { cuts: 2, deaths: 0, leaves: 0, time: 2 })
    }

    fn dying() -> Relay {
        relay(3, 1, Faults { cuts: 2, deaths: 1, leaves: 0, time: 0 })
    }

    fn leaving() -> Relay {
        relay(1, 2, Faults { cuts: 1, deaths: 0, leaves: 1, time: 2 })
    }

    #[test]
    fn frames_that_are_cut_admit_no_more() {
        holds(&cut());
        holds(&leaving());
    }

    #[test]
    fn the_relay_needs_each_rule() {
        needs_each_rule(&[
            (cut(), &[RelayRule::IdsInStore, RelayRule::OldRefused, RelayRule::KeepsId]),
            (dying(), &[RelayRule::AskedOnceMore]),
            (leaving(), &[RelayRule::DrainAnswers, RelayRule::DrainAnnounced]),
        ]);
    }
}
