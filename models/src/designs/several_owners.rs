//! A check with several owners: a client's limit and a global one are counted by different owners, see [`super::ownership`].
//!
//! A check asks one owner after the other, and gives back what it was charged when a later one denies it. Frames arrive in any
//! order, twice or late; an answer that does not come counts as a denial, and what may have been charged is given back too.

use stateright::{Model, Property};

use crate::check::Protocol;
use crate::network::Network;
use crate::rules::{Rules, rules};

const NEVER_MORE: &str = "no owner admits more than N";
const ONE_IS_ADMITTED: &str = "if no answer is lost, somebody gets the last token";
const DENIAL_CONSUMES_NOTHING: &str = "in the end a denied check has consumed nothing";

/// Number of owners.
const OWNERS: usize = 2;

rules! {
    /// Obeyed by checks and owners.
    OwnersRule {
        /// Every check asks its owners in the same order.
        FixedOrder = "owners.fixed-order" keeps ONE_IS_ADMITTED;
        /// A denied check gives back what it was charged, or may have been.
        Refunded = "owners.refunded" keeps DENIAL_CONSUMES_NOTHING;
        /// A charge has an id, and is given back once.
        RefundById = "owners.refund-by-id" keeps NEVER_MORE;
        /// A charge that was denied stays denied when it comes again.
        DenialStays = "owners.denial-stays" keeps DENIAL_CONSUMES_NOTHING;
        /// A refund that comes before its charge refuses it.
        RefundFirst = "owners.refund-first" keeps DENIAL_CONSUMES_NOTHING;
    }
}

/// The protocol within these bounds.
#[derive(Debug, Clone)]
pub struct SeveralOwners {
    rules: Rules<OwnersRule>,
    checks: usize,
    lost_answers: u8,
    duplicates: u8,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Frame {
    Charge { check: usize, owner: usize },
    Refund { check: usize, owner: usize },
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Phase {
    /// The number of owners that have admitted it.
    Asking(usize),
    Admitted,
    Denied,
}

/// Count of an owner that admits one, and the charges that it has or has given back.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct Owner {
    used: u8,
    charged: Vec<usize>,
    refunded: Vec<usize>,
    denied: Vec<usize>,
}

/// The state of checks and owners.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    checks: Vec<Phase>,
    /// Whether a frame of the check is under way whose answer it waits for.
    waits: Vec<bool>,
    owners: Vec<Owner>,
    network: Network<Frame>,
    lost_answers: u8,
    duplicates: u8,
    has_refunded: bool,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// A check asks its next owner.
    Ask(usize),
    /// A frame arrives, and the answer too.
    Arrive(usize),
    /// A frame arrives and will arrive again.
    ArriveTwice(usize),
    /// A check gives up waiting, and its frame arrives later.
    GiveUp(usize),
}

impl SeveralOwners {
    /// Returns the owner that a check asks as its nth one.
    fn owner(&self, check: usize, nth: usize) -> usize {
        if self.rules.has(OwnersRule::FixedOrder) { nth } else { (check + nth) % OWNERS }
    }

    fn deny(&self, state: &mut State, check: usize, asked: usize) {
        state.checks[check] = Phase::Denied;
        if self.rules.has(OwnersRule::Refunded) {
            for nth in 0..asked {
                state.network.send(Frame::Refund { check, owner: self.owner(check, nth) });
            }
        }
    }

    fn arrive(&self, state: &mut State, frame: Frame) {
        match frame {
            Frame::Charge { check, owner } => {
                let own = &mut state.owners[owner];
                let is_refused = own.refunded.contains(&check) && self.rules.has(OwnersRule::RefundFirst)
                    || own.denied.contains(&check) && self.rules.has(OwnersRule::DenialStays);
                let is_known = own.charged.contains(&check);
                let is_admitted = is_known || (own.used < 1 && !is_refused);
                if !is_admitted && !own.denied.contains(&check) {
                    own.denied.push(check);
                    own.denied.sort_unstable();
                }
                if is_admitted && !is_known {
                    own.used += 1;
                    own.charged.push(check);
                    own.charged.sort_unstable();
                }
                if let (Phase::Asking(admitted), true) = (state.checks[check], state.waits[check])
                    && owner == self.owner(check, admitted)
                {
                    state.waits[check] = false;
                    match is_admitted {
                        true if admitted + 1 == OWNERS => state.checks[check] = Phase::Admitted,
                        true => state.checks[check] = Phase::Asking(admitted + 1),
                        false => self.deny(state, check, admitted),
                    }
                }
            }
            Frame::Refund { check, owner } => {
                let own = &mut state.owners[owner];
                let is_charged = own.charged.contains(&check);
                if is_charged || !self.rules.has(OwnersRule::RefundById) {
                    own.used = own.used.saturating_sub(1);
                    own.charged.retain(|other| *other != check);
                    state.has_refunded = true;
                }
                if !own.refunded.contains(&check) {
                    own.refunded.push(check);
                    own.refunded.sort_unstable();
                }
            }
        }
    }
}

impl Protocol for SeveralOwners {
    type Rule = OwnersRule;

    fn with(&self, rules: Rules<OwnersRule>) -> Self {
        Self { rules, ..self.clone() }
    }
}

impl Model for SeveralOwners {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            checks: vec![Phase::Asking(0); self.checks],
            waits: vec![false; self.checks],
            owners: vec![Owner::default(); OWNERS],
            network: Network::default(),
            lost_answers: self.lost_answers,
            duplicates: self.duplicates,
            has_refunded: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        for (n, phase) in state.checks.iter().enumerate() {
            if let (Phase::Asking(_), waits) = (phase, state.waits[n]) {
                if !waits {
                    actions.push(Action::Ask(n));
                } else if state.lost_answers > 0 {
                    actions.push(Action::GiveUp(n));
                }
            }
        }
        for (n, _) in state.network.messages() {
            actions.push(Action::Arrive(n));
            if state.duplicates > 0 {
                actions.push(Action::ArriveTwice(n));
            }
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Ask(check) => {
                let Phase::Asking(admitted) = state.checks[check] else { return None };
                state.waits[check] = true;
                state.network.send(Frame::Charge { check, owner: self.owner(check, admitted) });
            }
            Action::Arrive(at) => {
                let frame = state.network.take(at);
                self.arrive(&mut state, frame);
            }
            Action::ArriveTwice(at) => {
                state.duplicates -= 1;
                let frame = state.network.take(at);
                state.network.send(frame);
                self.arrive(&mut state, frame);
            }
            Action::GiveUp(check) => {
                let Phase::Asking(admitted) = state.checks[check] else { return None };
                state.lost_answers -= 1;
                state.waits[check] = false;
                // The one without an answer may have charged it.
                self.deny(&mut state, check, admitted + 1);
            }
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_MORE, |_, state: &State| {
                let admitted = state.checks.iter().filter(|phase| **phase == Phase::Admitted).count();
                admitted <= 1
            }),
            Property::always(ONE_IS_ADMITTED, |model: &Self, state: &State| {
                let all_denied = state.checks.iter().all(|phase| *phase == Phase::Denied);
                !(all_denied && state.lost_answers == model.lost_answers)
            }),
            Property::always(DENIAL_CONSUMES_NOTHING, |_, state: &State| {
                let is_over = state.network.is_empty()
                    && state.checks.iter().all(|phase| !matches!(phase, Phase::Asking(_)));
                let admitted = state.checks.iter().filter(|phase| **phase == Phase::Admitted).count();
                !is_over || state.owners.iter().all(|owner| usize::from(owner.used) == admitted)
            }),
            Property::sometimes("a charge is given back, and another check admitted", |_, state: &State| {
                state.has_refunded && state.checks.contains(&Phase::Admitted)
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{holds, needs_each_rule};
    use crate::rules::Rule as _;

    fn owners() -> SeveralOwners {
        SeveralOwners { rules: Rules::all(), checks: 3, lost_answers: 1, duplicates: 1 }
    }

    #[test]
    fn a_check_of_several_owners_is_charged_by_all_or_none() {
        holds(&owners());
    }

    #[test]
    fn several_owners_need_each_rule() {
        needs_each_rule(&[(owners(), OwnersRule::ALL)]);
    }
}
