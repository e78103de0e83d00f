//! Quota leases: holders acquire blocks of quota from the store and admit requests from them without a call.
//!
//! The store decides by [`decide`] and [`settle`], and a holder keeps its [`Block`], all of which are what runs in production.
//! The size of a block is any: how it is chosen can waste quota, but must never admit more. Acquisitions, grants and
//! returns arrive in any order, late or never; holders die; their clocks run at other speeds than the store's.

use std::sync::Arc;

use sluice_limiter::{Algorithm, Period, Rate, Requests};
use sluice_store::check::{Records, decide, reset, settle};
use sluice_store::pure::{Block, ChargedWindow};
use sluice_store::{Counter, KeyHash, LimitSpec, Settlement};
use stateright::{Model, Property};

use crate::check::Protocol;
use crate::network::Network;
use crate::rules::{Rules, rules};
use crate::time::{Instants, START, shown};

const NEVER_MORE: &str = "no aligned window admits more than N";
const KEY: KeyHash = KeyHash(7);

rules! {
    /// Obeyed by the callers of the store and of the blocks.
    LeaseRule {
        /// The deadline of a block counts from the time at which its call was sent.
        FromSending = "lease.deadline-from-sending" keeps NEVER_MORE;
        /// A return is not sent again, because it may have arrived.
        ReturnedOnce = "lease.returned-once" keeps NEVER_MORE;
        /// A return names the instant of the charge, and so its window.
        ReturnNamesCharge = "lease.return-names-charge" keeps NEVER_MORE;
        /// A holder that is told of a reset forgets what was charged before, and returns nothing of it.
        ForgetsReset = "lease.forgets-reset" keeps NEVER_MORE;
        /// Quota leaves the block before the call that returns it is sent.
        ReturnLeavesFirst = "lease.return-leaves-first" keeps NEVER_MORE;
    }
}

/// The protocol within these bounds.
#[derive(Debug, Clone)]
pub struct Leases {
    rules: Rules<LeaseRule>,
    spec: Arc<LimitSpec>,
    instants: Instants,
    /// Speed of each holder's clock, in thousandths of the store's.
    speeds: Vec<u64>,
    /// Sizes of blocks.
    sizes: Vec<u64>,
    /// Most acquisitions, returns, requests checked alone, and deaths.
    most: Budget,
}

/// How often something may still happen.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Budget {
    acquisitions: u8,
    returns: u8,
    checks: u8,
    deaths: u8,
    resets: u8,
}

#[derive(Debug, Clone, Default, PartialEq, Eq, Hash)]
struct LeaseHolder {
    block: Block,
    /// Whether a block is being acquired.
    acquiring: bool,
    /// The last request: the end of the window whose quota it took, and the instant at which it was admitted.
    last: Option<(u64, usize)>,
    /// When the counter was reset, until the holder is told.
    untold: bool,
    /// Instant of the last reset of which it was told; grants of before are none.
    removed_at: u64,
}

/// A message between a holder and the store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Message {
    /// A block is wanted.
    Acquire {
        /// The holder; `None` if it has died.
        holder: Option<usize>,
        /// Time of the call, by the holder's clock.
        sent: u64,
        /// Size of the block.
        wanted: u64,
    },
    /// A block is granted.
    Granted {
        /// The holder.
        holder: usize,
        /// Time of the call, by the holder's clock.
        sent: u64,
        /// Size of the block.
        granted: u64,
        /// Time of the decision, by the store's clock.
        at: u64,
        /// The window that was charged.
        window: ChargedWindow,
    },
    /// Unused quota is returned.
    Return {
        /// Amount.
        amount: u64,
        /// Instant of the charge, by the store's clock.
        charged: u64,
        /// Whether its holder had been told of the last reset.
        is_told: bool,
    },
}

/// The state of store, holders and network.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct State {
    step: usize,
    store: Records,
    holders: Vec<LeaseHolder>,
    network: Network<Message>,
    left: Budget,
    /// Number of requests admitted at each instant.
    admitted: Vec<u64>,
    /// Instant of the last reset; 0 if there was none. What was returned of before, in spite of it.
    removed_at: u64,
    late: u64,
    has_returned: bool,
    has_used_late_grant: bool,
}

/// A step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Action {
    /// Time goes on.
    Advance,
    /// A holder acquires a block of this size.
    Acquire(usize, u64),
    /// A holder admits a request from its block.
    Admit(usize),
    /// The last request of a holder is not admitted after all.
    PutBack(usize),
    /// A holder returns its block.
    Return(usize),
    /// A request is checked in the store alone.
    Check,
    /// A holder dies, and begins again with nothing.
    Die(usize),
    /// The counter is reset.
    Reset,
    /// A holder is told of it.
    Tell(usize),
    /// A message arrives.
    Arrive(usize),
    /// A message is lost.
    Lose(usize),
}

impl Leases {
    /// Returns leases of a limit with these rates, each a number and milliseconds, whose first windows are the shortest.
    ///
    /// # Panics
    /// A number is out of range.
    #[must_use]
    pub fn new(
        rates: &[(u64, u64)],
        algorithm: Algorithm,
        speeds: &[u64],
        sizes: &[u64],
        most: Budget,
    ) -> Self {
        let rate = |&(requests, millis): &(u64, u64)| {
            let (requests, period) = (Requests::new(requests), Period::from_millis(millis));
            Rate::new(requests.expect("in range"), period.expect("in range"), algorithm)
                .expect("a valid rate")
        };
        let rates: Vec<Rate> = rates.iter().map(rate).collect();
        let window = rates[0].period.micros();
        Self {
            rules: Rules::all(),
            spec: Arc::new(LimitSpec::new("n/p/l", rates)),
            instants: Instants { window, within: vec![0, window / 2], windows: 2 },
            speeds: speeds.to_vec(),
            sizes: sizes.to_vec(),
            most,
        }
    }

    fn counter(&self, cost: u64) -> Counter {
        Counter { limit: self.spec.clone(), key: KEY, cost }
    }

    /// Returns the time of the store.
    fn now(&self, state: &State) -> u64 {
        START + self.instants.at(state.step)
    }

    /// Returns the time of a holder's clock, each of which began at another time.
    fn clock(&self, state: &State, holder: usize) -> u64 {
        (holder as u64 + 1) * 1_000_000 + shown(self.instants.at(state.step), self.speeds[holder])
    }

    fn arrive(&self, state: &mut State, message: Message) {
        let now = self.now(state);
        match message {
            Message::Acquire { holder, sent, wanted } => {
                let mut decide = |cost| {
                    let mut records = [std::mem::take(&mut state.store)];
                    let response = decide(&[self.counter(cost)], &mut records, now);
                    [state.store] = records;
                    response
                };
                let granted = (0..wanted).take_while(|_| decide(1).admitted).count() as u64;
                let response = decide(0);
                let Some(holder) = holder else { return };
                let window = ChargedWindow::of(&self.spec, KEY, response.at, &response.decisions);
                state.network.send(Message::Granted { holder, sent, granted, at: response.at, window });
            }
            Message::Granted { holder, sent, granted, at, window } => {
                let clock = self.clock(state, holder);
                let own = &mut state.holders[holder];
                own.acquiring = false;
                own.block.expire(clock);
                if granted > 0 && at > own.removed_at {
                    let sent = if self.rules.has(LeaseRule::FromSending) { sent } else { clock };
                    own.block.add(granted, at, window, sent);
                    own.block.expire(clock);
                    state.has_used_late_grant |= clock > sent && own.block.left() > 0;
                }
            }
            Message::Return { amount, charged, is_told } => {
                let names = self.rules.has(LeaseRule::ReturnNamesCharge);
                let settlement = Settlement {
                    limit: self.spec.clone(),
                    key: KEY,
                    charged: if names { charged } else { now },
                    delta: -(amount as i64),
                    overflowed: false,
                    least: 0,
                };
                settle(&settlement, &mut state.store, now);
                if charged <= state.removed_at && !is_told {
                    state.late += amount;
                }
                state.has_returned = true;
            }
        }
    }
}

impl Protocol for Leases {
    type Rule = LeaseRule;

    fn with(&self, rules: Rules<LeaseRule>) -> Self {
        Self { rules, ..self.clone() }
    }
}

impl Model for Leases {
    type State = State;
    type Action = Action;

    fn init_states(&self) -> Vec<State> {
        vec![State {
            step: 0,
            store: Records::new(),
            holders: vec![LeaseHolder::default(); self.speeds.len()],
            network: Network::default(),
            left: self.most.clone(),
            admitted: vec![0; self.instants.count()],
            removed_at: 0,
            late: 0,
            has_returned: false,
            has_used_late_grant: false,
        }]
    }

    fn actions(&self, state: &State, actions: &mut Vec<Action>) {
        if state.step + 1 < self.instants.count() {
            actions.push(Action::Advance);
        }
        for (n, holder) in state.holders.iter().enumerate() {
            if !holder.acquiring && state.left.acquisitions > 0 {
                actions.extend(self.sizes.iter().map(|size| Action::Acquire(n, *size)));
            }
            if holder.block.left() > 0 {
                actions.push(Action::Admit(n));
                if state.left.returns > 0 {
                    actions.push(Action::Return(n));
                }
            }
            if holder.last.is_some() {
                actions.push(Action::PutBack(n));
            }
            if state.left.deaths > 0 {
                actions.push(Action::Die(n));
            }
            if holder.untold {
                actions.push(Action::Tell(n));
            }
        }
        if state.left.checks > 0 {
            actions.push(Action::Check);
        }
        if state.left.resets > 0 {
            actions.push(Action::Reset);
        }
        for (n, _) in state.network.messages() {
            actions.extend([Action::Arrive(n), Action::Lose(n)]);
        }
    }

    fn next_state(&self, before: &State, action: Action) -> Option<State> {
        let mut state = before.clone();
        match action {
            Action::Advance => state.step += 1,
            Action::Acquire(n, wanted) => {
                state.left.acquisitions -= 1;
                state.holders[n].acquiring = true;
                let sent = self.clock(&state, n);
                state.network.send(Message::Acquire { holder: Some(n), sent, wanted });
            }
            Action::Admit(n) => {
                let clock = self.clock(&state, n);
                let own = &mut state.holders[n];
                own.block.expire(clock);
                if own.block.left() > 0 {
                    own.block.remove(1);
                    // Until it is told, it admits what the reset counter does not know.
                    if !(own.untold && own.block.charged_since() <= state.removed_at) {
                        own.last = Some((own.block.window_end(), state.step));
                        state.admitted[state.step] += 1;
                    }
                }
            }
            Action::PutBack(n) => {
                let clock = self.clock(&state, n);
                let (window_end, step) = state.holders[n].last.take()?;
                state.holders[n].block.put_back(1, window_end, clock);
                state.admitted[step] -= 1;
            }
            Action::Return(n) => {
                state.left.returns -= 1;
                let clock = self.clock(&state, n);
                let is_told = !state.holders[n].untold && state.removed_at > 0;
                let block = &mut state.holders[n].block;
                block.expire(clock);
                // A block that is merged names its newest charge, of the same window.
                let charged = if is_told { block.charged_at() } else { block.charged_since() };
                let amount = block.left();
                if self.rules.has(LeaseRule::ReturnLeavesFirst) {
                    block.remove(amount);
                }
                if amount > 0 {
                    state.network.send(Message::Return { amount, charged, is_told });
                    if !self.rules.has(LeaseRule::ReturnedOnce) {
                        state.network.send(Message::Return { amount, charged, is_told });
                    }
                }
            }
            Action::Check => {
                state.left.checks -= 1;
                let mut records = [std::mem::take(&mut state.store)];
                if decide(&[self.counter(1)], &mut records, self.now(&state)).admitted {
                    state.admitted[state.step] += 1;
                }
                [state.store] = records;
            }
            Action::Die(n) => {
                state.left.deaths -= 1;
                state.holders[n] = LeaseHolder::default();
                let is_for =
                    |message: &Message| matches!(message, Message::Granted { holder, .. } if *holder == n);
                state.network.retain(|message| !is_for(message));
                state.network.map(|message| match message {
                    Message::Acquire { holder: Some(holder), sent, wanted } if holder == n => {
                        Message::Acquire { holder: None, sent, wanted }
                    }
                    other => other,
                });
            }
            Action::Reset => {
                state.left.resets -= 1;
                let now = self.now(&state);
                state.store = reset(&self.spec, &state.store, now);
                state.removed_at = now;
                state.admitted.fill(0);
                for holder in &mut state.holders {
                    (holder.untold, holder.last) = (true, None);
                }
            }
            Action::Tell(n) => {
                let own = &mut state.holders[n];
                own.untold = false;
                if self.rules.has(LeaseRule::ForgetsReset) {
                    own.removed_at = state.removed_at;
                    if own.block.charged_since() <= state.removed_at {
                        own.block.remove(own.block.left());
                    }
                }
            }
            Action::Arrive(at) => {
                let message = state.network.take(at);
                self.arrive(&mut state, message);
            }
            Action::Lose(at) => {
                if let Message::Acquire { holder: Some(n), .. } | Message::Granted { holder: n, .. } =
                    state.network.take(at)
                {
                    // The call has failed.
                    state.holders[n].acquiring = false;
                }
            }
        }
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        vec![
            Property::always(NEVER_MORE, |model: &Self, state: &State| {
                model.spec.rates.iter().all(|rate| {
                    let window = |step| model.instants.window_of(step, rate.period.micros());
                    (0..=state.step).all(|begin| {
                        let same = (0..=state.step).filter(|&step| window(step) == window(begin));
                        same.map(|step| state.admitted[step]).sum::<u64>() <= rate.requests.get() + state.late
                    })
                })
            }),
            Property::sometimes("a window admits all of N from blocks", |model: &Self, state: &State| {
                let of_all: u64 = state.admitted.iter().sum();
                of_all == model.spec.rates[0].requests.get() && state.left.checks == model.most.checks
            }),
            Property::sometimes(
                "a grant is used that was on its way while time went on",
                |_, state: &State| {
                    state.has_used_late_grant && state.step > 0 && state.admitted[state.step] > 0
                },
            ),
            Property::sometimes("quota that was returned is acquired again", |_, state: &State| {
                state.has_returned && state.holders.iter().any(|holder| holder.block.left() > 0)
            }),
        ]
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::check::{holds, needs_each_rule};

    const FEW: Budget = Budget { acquisitions: 2, returns: 1, checks: 2, deaths: 1, resets: 0 };

    /// Two holders, one with a clock that is slower by a thousandth.
    fn leases(rates: &[(u64, u64)], algorithm: Algorithm, most: Budget) -> Leases {
        Leases::new(rates, algorithm, &[999, 1000], &[2], most)
    }

    #[test]
    fn leases_never_admit_more_than_the_number() {
        holds(&leases(&[(2, 1000)], Algorithm::FIXED_WINDOW, FEW));
        holds(&leases(&[(2, 1000)], Algorithm::SLIDING_WINDOW, FEW));
    }

    #[test]
    fn leases_of_two_rates_never_admit_more_than_either_number() {
        holds(&leases(&[(2, 1000), (3, 2000)], Algorithm::FIXED_WINDOW, FEW));
    }

    /// A counter that is reset.
    fn resetting() -> Leases {
        let most = Budget { acquisitions: 2, returns: 1, checks: 1, deaths: 0, resets: 1 };
        leases(&[(2, 1000)], Algorithm::FIXED_WINDOW, most)
    }

    #[test]
    fn a_reset_counter_admits_the_number_once_more() {
        holds(&resetting());
    }

    #[test]
    fn leases_need_each_rule() {
        let rules = &[
            LeaseRule::FromSending,
            LeaseRule::ReturnedOnce,
            LeaseRule::ReturnNamesCharge,
            LeaseRule::ReturnLeavesFirst,
        ];
        let usual = leases(&[(2, 1000)], Algorithm::FIXED_WINDOW, FEW);
        needs_each_rule(&[(usual, rules), (resetting(), &[LeaseRule::ForgetsReset])]);
    }

    #[test]
    #[ignore = "make models"]
    fn more_leases_never_admit_more_than_the_number() {
        let more = Budget { acquisitions: 3, returns: 1, checks: 1, deaths: 1, resets: 0 };
        holds(&leases(&[(3, 1000)], Algorithm::FIXED_WINDOW, more));
    }
}
