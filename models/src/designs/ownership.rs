//! Ownership: a partition of counters has one owner at a time, which counts in its memory.
//!
//! A registry has the owner's lease: its name and its term. An owner renews it, and stops by its own clock when it could not. The next
//! one begins after a handover, or after the lease has expired by its own clock, since it saw the last renewal. Sidecars know the total
//! of the last answer; an owner that was handed nothing begins as a store that has forgotten does (see [`super::epochs`]).
//!
//! Owners die at any point, also midway in a handover; two leave at once; clocks differ in speed; messages are late, twice, or lost.

use stateright::{Model, Property};

use crate::check::Protocol;
use crate::network::Network;
use crate::rules::{Rules, rules};
use crate::time::shown;

const NEVER_MORE: &str = "no more than N are admitted";
const NEVER_TWO: &str = "two owners never both admit";
const LEAVING_LOSES_NOTHING: &str = "an owner that leaves loses no count while another replica stays";
const ONE_HANDOVER: &str = "each leave moves the counts once";

/// Time, by the clock of another replica, after which a lease has expired that it has not seen renewed.
const LEASE: u64 = 4;
/// Time, by its own clock, for which an owner admits after a renewal. The margin covers clocks that are slower by a quarter.
const USED: u64 = 3;

rules! {
    /// Obeyed by owners, sidecars and registry.
    OwnershipRule {
        /// An owner that could not renew its lease stops by its own clock.
        StopsByOwnClock = "ownership.stops-by-own-clock" keeps NEVER_TWO;
        /// It stops earlier than the lease expires, by as much as clocks may differ.
        Margin = "ownership.margin" keeps NEVER_TWO;
        /// Its time counts from when it sent the renewal.
        FromSending = "ownership.from-sending" keeps NEVER_TWO;
        /// An owner that hands over admits nothing more.
        HandoverStops = "ownership.handover-stops" keeps NEVER_TWO;
        /// The registry grants a term once, to who names the one before it.
        TermOnce = "ownership.term-once" keeps NEVER_TWO;
        /// A replica begins a term once: counts that come again after it stopped are those of before.
        BegunOnce = "ownership.begun-once" keeps NEVER_MORE;
        /// Counts that are handed over name the term for which they are, and are merged by maximum.
        CountsAreMerged = "ownership.counts-are-merged" keeps NEVER_MORE;
        /// A term without counts of the one before begins with what sidecars assert, and admits nothing before.
        TermIsEpoch = "ownership.term-is-epoch" keeps NEVER_MORE;
        /// A replica that leaves takes nothing over.
        LeavingTakesNothing = "ownership.leaving-takes-nothing" keeps ONE_HANDOVER;
        /// An owner that leaves keeps its counts, and sends them again, until another replica has them.
        KeepsUntilTaken = "ownership.keeps-until-taken" keeps LEAVING_LOSES_NOTHING;
    }
}

/// The protocol within these bounds.
#[derive(Debug, Clone)]
pub struct Ownership {
    rules: Rules<OwnershipRule>,
    number: u8,
    /// Speed of each replica's clock, in thousandths.
    speeds: Vec<u64>,
    most: Faults,
}

/// How often something may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Faults {
    /// Time goes on.
    time: u8,
    /// A replica dies.
    deaths: u8,
    /// A replica leaves.
    leaves: u8,
    /// An owner renews its lease.
    renewals: u8,
    /// A message arrives twice, or not at all.
    faults: u8,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Owner {
    term: u8,
    count: u8,
    /// Instant until which it admits, by its own clock.
    until: u64,
    /// Whether it waits for what sidecars know.
    waits: bool,
    /// Whether it hands over, to which replica and for which term.
    stops: Option<(usize, u8)>,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Replica {
    owner: Option<Owner>,
    /// The last term that it began.
    began: u8,
    /// The renewal of the lease that it saw last, and when, by its own clock.
    seen: (u8, u8),
    seen_at: u64,
    leaves: bool,
    is_gone: bool,
    /// When it sent the renewal that has no answer, by its own clock.
    renewing: Option<u64>,
}

/// State of the registry.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Registry {
    holder: Option<usize>,
    term: u8,
    renewals: u8,
}

/// A message between replicas.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// The counts for the next owner.
    Counts {
        /// The next owner.
        to: usize,
        /// Its term.
        term: u8,
        /// The count.
        count: u8,
    },
}

/// The state of registry, replicas and sidecars.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    registry: Registry,
    replicas: Vec<Replica>,
    network: Network<Message>,
    now: u64,
    admitted: u8,
    /// Largest total that a sidecar knows. There is always one that has the last answer.
    known: u8,
    /// Highest term in which something was admitted.
    last_term: u8,
    were_two: bool,
    handovers: u8,
    left: Faults,
    has_taken_over: bool,
    has_expired: bool,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// An owner admits a request.
    Admit(usize),
    /// An owner sends a renewal, which reaches the registry.
    Renew(usize),
    /// It hears that it was renewed.
    Renewed(usize),
    /// A replica looks at the registry.
    Look(usize),
    /// A replica takes over an expired or released lease.
    Take(usize),
    /// A new owner has waited for what sidecars know.
    Asserted(usize),
    /// A replica begins to leave.
    Leave(usize),
    /// An owner that leaves names the next one in the registry, and sends it the counts.
    HandOver(usize, usize),
    /// It sends them again.
    SendAgain(usize),
    /// An owner that could not renew its lease stops.
    Stop(usize),
    /// A replica that leaves and owns nothing is gone.
    Go(usize),
    /// A message arrives.
    Arrive(usize),
    /// A message arrives and will arrive again.
    ArriveTwice(usize),
    /// A message is lost.
    Lose(usize),
    /// A replica dies.
    Die(usize),
    /// Time goes on.
    Advance,
}

impl Ownership {
    fn clock(&self, state: &State, n: usize) -> u64 {
        shown(state.now, self.speeds[n])
    }

    /// Returns the time for which an owner admits after a renewal.
    fn used(&self) -> u64 {
        if self.rules.has(OwnershipRule::Margin) { USED } else { LEASE }
    }

    fn admits(&self, state: &State, n: usize) -> bool {
        let is_in_time = |owner: &Owner| {
            self.clock(state, n) < owner.until || !self.rules.has(OwnershipRule::StopsByOwnClock)
        };
        let stops = |owner: &Owner| owner.stops.is_some() && self.rules.has(OwnershipRule::HandoverStops);
        state.replicas[n]
            .owner
            .as_ref()
            .is_some_and(|owner| !owner.waits && !stops(owner) && is_in_time(owner))
    }

    /// A replica becomes the owner, with these counts of the term before, or with none.
    fn begin(&self, state: &mut State, n: usize, counts: Option<u8>) {
        let until = self.clock(state, n) + self.used();
        let waits = counts.is_none() && self.rules.has(OwnershipRule::TermIsEpoch);
        let owner =
            Owner { term: state.registry.term, count: counts.unwrap_or(0), until, waits, stops: None };
        let replica = &mut state.replicas[n];
        (replica.began, replica.owner, replica.renewing) = (owner.term, Some(owner), None);
    }

    fn arrive(&self, state: &mut State, message: Message) {
        let Message::Counts { to, term, count } = message;
        let is_new = state.replicas[to].began < term || !self.rules.has(OwnershipRule::BegunOnce);
        let is_next = state.registry.holder == Some(to) && state.registry.term == term && is_new;
        if state.replicas[to].is_gone {
            return;
        }
        match &mut state.replicas[to].owner {
            None if is_next => {
                self.begin(state, to, Some(count));
                state.has_taken_over = true;
            }
            // It has begun without, or the message has come before.
            Some(owner) if self.rules.has(OwnershipRule::CountsAreMerged) => {
                owner.count = if owner.term == term { owner.count.max(count) } else { owner.count };
            }
            Some(owner) => owner.count = count,
            None => {}
        }
    }
}

impl Protocol for Ownership {
    type Rule = OwnershipRule;

    fn with(&self, rules: Rules<OwnershipRule>) -> Self {
        Self { rules, ..self.clone() }
    }
}

impl Model for Ownership {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        let replica = Replica {
            owner: None,
            began: 0,
            seen: (1, 0),
            seen_at: 0,
            leaves: false,
            is_gone: false,
            renewing: None,
        };
        let mut replicas = vec![replica; self.speeds.len()];
        replicas[0].owner = Some(Owner { term: 1, count: 0, until: self.used(), waits: false, stops: None });
        vec![State {
            registry: Registry { holder: Some(0), term: 1, renewals: 0 },
            replicas,
            network: Network::default(),
            now: 0,
            admitted: 0,
            known: 0,
            last_term: 1,
            were_two: false,
            handovers: 0,
            left: self.most.clone(),
            has_taken_over: false,
            has_expired: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        let stays = |n: usize| {
            let replica = &state.replicas[n];
            !(replica.is_gone || replica.leaves && self.rules.has(OwnershipRule::LeavingTakesNothing))
        };
        for (n, replica) in state.replicas.iter().enumerate().filter(|(_, replica)| !replica.is_gone) {
            let registered = (state.registry.term, state.registry.renewals);
            if self.admits(state, n) && replica.owner.as_ref().is_some_and(|owner| owner.count < self.number)
            {
                actions.push(Action::Admit(n));
            }
            if let Some(owner) = &replica.owner {
                if owner.waits {
                    actions.push(Action::Asserted(n));
                }
                let is_mine = state.registry.holder == Some(n) && state.registry.term == owner.term;
                if state.left.renewals > 0 && is_mine && owner.stops.is_none() && replica.renewing.is_none() {
                    actions.push(Action::Renew(n));
                }
                if replica.renewing.is_some() {
                    actions.push(Action::Renewed(n));
                }
                let begins = replica.leaves && is_mine && owner.stops.is_none() && !owner.waits;
                // It has stopped, and nobody has its counts.
                let goes_on = owner
                    .stops
                    .is_some_and(|(to, term)| state.replicas[to].is_gone && state.registry.term == term);
                let others = (0..state.replicas.len()).filter(|&other| other != n && stays(other));
                if begins || goes_on {
                    actions.extend(others.clone().map(|other| Action::HandOver(n, other)));
                }
                let is_taken =
                    |(to, term): (usize, u8)| state.registry.term > term || state.replicas[to].began >= term;
                match owner.stops {
                    Some(next) if is_taken(next) => actions.push(Action::Go(n)),
                    Some(_) if !self.rules.has(OwnershipRule::KeepsUntilTaken) => actions.push(Action::Go(n)),
                    Some(_) => actions.push(Action::SendAgain(n)),
                    None if replica.leaves && others.count() == 0 => actions.push(Action::Go(n)),
                    None => {}
                }
                if owner.until <= self.clock(state, n) && owner.stops.is_none() {
                    actions.push(Action::Stop(n));
                }
            } else {
                if replica.leaves {
                    actions.push(Action::Go(n));
                }
                if replica.seen != registered {
                    actions.push(Action::Look(n));
                }
                let is_expired = self.clock(state, n) >= replica.seen_at + LEASE;
                let is_known = replica.seen == registered || !self.rules.has(OwnershipRule::TermOnce);
                if stays(n) && is_expired && is_known {
                    actions.push(Action::Take(n));
                }
            }
            let left = state.replicas.iter().filter(|replica| !replica.is_gone).count();
            if state.left.deaths > 0 && left > 1 {
                actions.push(Action::Die(n));
            }
            if state.left.leaves > 0 && !replica.leaves {
                actions.push(Action::Leave(n));
            }
        }
        for (n, _) in state.network.messages() {
            actions.push(Action::Arrive(n));
            if state.left.faults > 0 {
                actions.extend([Action::ArriveTwice(n), Action::Lose(n)]);
            }
        }
        if state.left.time > 0 {
            actions.push(Action::Advance);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Admit(n) => {
                let other = (0..self.speeds.len()).find(|&other| other != n && self.admits(&state, other));
                let owner = state.replicas[n].owner.as_mut()?;
                owner.count += 1;
                state.were_two |= other.is_some() || owner.term < state.last_term;
                state.last_term = state.last_term.max(owner.term);
                state.admitted += 1;
                state.known = state.known.max(owner.count);
            }
            Action::Renew(n) => {
                state.left.renewals -= 1;
                state.registry.renewals += 1;
                state.replicas[n].renewing = Some(self.clock(&state, n));
            }
            Action::Renewed(n) => {
                let now = self.clock(&state, n);
                let sent = state.replicas[n].renewing.take()?;
                let from = if self.rules.has(OwnershipRule::FromSending) { sent } else { now };
                let until = from + self.used();
                let owner = state.replicas[n].owner.as_mut()?;
                owner.until = owner.until.max(until);
            }
            Action::Look(n) => {
                let seen_at = self.clock(&state, n);
                let replica = &mut state.replicas[n];
                (replica.seen, replica.seen_at) = ((state.registry.term, state.registry.renewals), seen_at);
            }
            Action::Take(n) => {
                state.has_expired = true;
                state.registry = Registry { holder: Some(n), term: state.registry.term + 1, renewals: 0 };
                self.begin(&mut state, n, None);
            }
            Action::Stop(n) => {
                let seen_at = self.clock(&state, n);
                let replica = &mut state.replicas[n];
                (replica.owner, replica.renewing) = (None, None);
                (replica.seen, replica.seen_at) = ((state.registry.term, state.registry.renewals), seen_at);
            }
            Action::Asserted(n) => {
                let known = state.known;
                let owner = state.replicas[n].owner.as_mut()?;
                (owner.waits, owner.count) = (false, owner.count.max(known));
            }
            Action::Leave(n) => {
                state.left.leaves -= 1;
                state.replicas[n].leaves = true;
            }
            Action::HandOver(n, to) => {
                let term = state.registry.term + 1;
                let owner = state.replicas[n].owner.as_mut()?;
                owner.stops = Some((to, term));
                let count = owner.count;
                state.registry = Registry { holder: Some(to), term, renewals: 0 };
                state.network.send(Message::Counts { to, term, count });
                state.handovers += 1;
            }
            Action::SendAgain(n) => {
                let owner = state.replicas[n].owner.as_ref()?;
                let ((to, term), count) = (owner.stops?, owner.count);
                if state.network.messages().any(|(_, Message::Counts { term: other, .. })| *other == term) {
                    return None;
                }
                state.network.send(Message::Counts { to, term, count });
            }
            Action::Go(n) => {
                state.replicas[n].is_gone = true;
                state.replicas[n].owner = None;
            }
            Action::Arrive(at) => {
                let message = state.network.take(at);
                self.arrive(&mut state, message);
            }
            Action::ArriveTwice(at) => {
                state.left.faults -= 1;
                let message = state.network.take(at);
                state.network.send(message);
                self.arrive(&mut state, message);
            }
            Action::Lose(at) => {
                state.left.faults -= 1;
                state.network.take(at);
            }
            Action::Die(n) => {
                state.left.deaths -= 1;
                state.replicas[n].is_gone = true;
                state.replicas[n].owner = None;
            }
            Action::Advance => {
                state.left.time -= 1;
                state.now += 1;
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_MORE, |model: &Self, state: &State| state.admitted <= model.number),
            Property::always(NEVER_TWO, |_, state: &State| !state.were_two),
            Property::always(LEAVING_LOSES_NOTHING, |model: &Self, state: &State| {
                let had_faults = state.left.deaths < model.most.deaths || state.has_expired;
                let stays = state.replicas.iter().any(|replica| !replica.leaves && !replica.is_gone);
                let mut messages = state.network.messages();
                let is_there = state.replicas.iter().any(|replica| replica.owner.is_some())
                    || messages.any(|(_, Message::Counts { to, .. })| !state.replicas[*to].is_gone);
                had_faults || !stays || is_there || state.now > 0
            }),
            Property::always(ONE_HANDOVER, |model: &Self, state: &State| {
                state.handovers <= model.most.leaves - state.left.leaves
            }),
            Property::sometimes(
                "an owner that was handed the counts admits the rest",
                |model: &Self, state: &State| {
                    state.has_taken_over && state.last_term > 1 && state.admitted == model.number
                },
            ),
            Property::sometimes(
                "a lease expires, or there is no time for it",
                |model: &Self, state: &State| {
                    model.most.time == 0
                        || state.has_expired && state.last_term > 1 && state.admitted == model.number
                },
            ),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{holds, needs_each_rule};

    /// A clock that is slower by a quarter, and one that is right.
    fn expiring() -> Ownership {
        let most = Faults { time: 6, deaths: 1, leaves: 1, renewals: 1, faults: 1 };
        Ownership { rules: Rules::all(), number: 2, speeds: vec![750, 1000], most }
    }

    /// Two of three leave, and there is no time for a lease to expire.
    fn leaving() -> Ownership {
        let most = Faults { time: 0, deaths: 0, leaves: 2, renewals: 0, faults: 2 };
        Ownership { rules: Rules::all(), number: 3, speeds: vec![1000; 3], most }
    }

    #[test]
    fn a_partition_has_one_owner_and_one_count() {
        holds(&expiring());
    }

    #[test]
    fn owners_that_leave_hand_over_all_counts() {
        holds(&leaving());
    }

    #[test]
    fn ownership_needs_each_rule() {
        let in_time = &[
            OwnershipRule::StopsByOwnClock,
            OwnershipRule::Margin,
            OwnershipRule::FromSending,
            OwnershipRule::TermOnce,
            OwnershipRule::TermIsEpoch,
            OwnershipRule::BegunOnce,
        ];
        let in_handovers = &[
            OwnershipRule::HandoverStops,
            OwnershipRule::CountsAreMerged,
            OwnershipRule::LeavingTakesNothing,
            OwnershipRule::KeepsUntilTaken,
        ];
        needs_each_rule(&[(expiring(), in_time), (leaving(), in_handovers)]);
    }
}
