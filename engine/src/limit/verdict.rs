//! The verdict about a query: its outcome, the state of each limit, and what is held until the end. Answers and metrics are made from
//! it.

use std::sync::Arc;

use sluice_config::charged::ChargedMark;
use sluice_config::prepared::Refusal;
use sluice_limiter::Decision;
use sluice_store::{KeyHash, Reservation};
use smallvec::SmallVec;

use crate::limit::delay_queue::{Delay, QueueFull};
use crate::limit::held::Held;
use crate::limit::index::LimitIndex;
use crate::limit::query::Intent;
use crate::limit::queue::{QueueDenial, Wait};
use crate::limit::snapshot::Snapshot;
use crate::limit::state::{State, States, denies};
use crate::limit::told::Told;

/// The outcome of a query.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is admitted, after the delay if there is one. Every limit had room and was charged.
    Admit(Option<Box<Delay>>),
    /// All limits that deny it have queues. Nothing was charged.
    Wait(Wait),
    /// It is denied. Nothing was charged.
    Deny(Reason),
    /// The store did not answer, and the policies admit requests then. The fault is that of `x-sluice-store-failure`.
    Unknown(&'static str),
}

/// Why a request is denied.
#[derive(Debug)]
pub(crate) enum Reason {
    /// At least one limit had no room, as the states tell.
    Limits,
    /// Every limit had room, but a delay queue is full. The charges are refunded.
    QueueFull(QueueFull),
    /// It cannot wait in a queue, or not any longer.
    NotQueued(QueueDenial),
    /// It meets more limits than a query has.
    TooManyLimits,
    /// This limit needs more of the request than whoever asks sees.
    Undecidable(LimitIndex),
    /// This limit denies it without counting it.
    Refused(LimitIndex, Refusal),
    /// An adaptive limit is reached.
    Shed(LimitIndex),
    /// The store did not answer, and slots of this process may have been given to other processes.
    SlotsExpired {
        /// The limit that holds the slots.
        limit: LimitIndex,
        fault: &'static str,
    },
    /// The store did not answer, and the policy of this limit rejects requests then.
    StoreFailed { limit: LimitIndex, fault: &'static str },
}

/// The verdict about a query.
#[derive(Debug)]
pub(crate) struct Verdict {
    /// The snapshot whose limits have decided.
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) outcome: Outcome,
    /// The parts that were asked for together, in the order of the query, if the stores have answered.
    pub(crate) states: States,
    /// The counters that were asked alone, in the order of the query. Empty if none was asked.
    pub(crate) beside: Vec<StateBeside>,
    /// Limits that only mark or observe, and would deny the request without counting it.
    pub(crate) beside_refused: SmallVec<[LimitIndex; 1]>,
    /// The limits that were asked for together, and that a store has not answered about.
    pub(crate) unanswered: Vec<LimitIndex>,
    /// The adaptive limits, each with whether it had room.
    pub(crate) permits: SmallVec<[(LimitIndex, bool); 1]>,
    /// Everything that the request holds until it ends.
    pub(crate) held: Held,
}

/// The state of a counter that was asked alone.
#[derive(Debug)]
pub(crate) struct StateBeside {
    pub(crate) limit: LimitIndex,
    pub(crate) key: KeyHash,
    pub(crate) intent: Intent,
    /// Whether the request is denied without room.
    pub(crate) denies: bool,
    /// The answer, or the store's failure.
    pub(crate) state: Result<State, &'static str>,
    /// Whether a settlement has found its reservation.
    pub(crate) settled: Option<bool>,
}

impl Verdict {
    /// A verdict about a request that holds nothing.
    pub(crate) fn new(snapshot: Arc<Snapshot>, outcome: Outcome) -> Self {
        Self {
            snapshot,
            outcome,
            states: States::new(),
            beside: Vec::new(),
            beside_refused: SmallVec::new(),
            unanswered: Vec::new(),
            permits: SmallVec::new(),
            held: Held::default(),
        }
    }

    /// A denial of a request that holds nothing.
    pub(crate) fn denied(snapshot: Arc<Snapshot>, reason: Reason) -> Self {
        Self::new(snapshot, Outcome::Deny(reason))
    }

    /// Iterates over the counted limits and the decisions of their rates.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (LimitIndex, &[Decision])> {
        self.states.iter().flat_map(State::counted).map(|(_, limit, own)| (limit, own))
    }

    /// Iterates over the limits that answers report: those that were counted, and those that were charged, given back or read alone.
    pub(crate) fn reported(&self) -> impl Iterator<Item = (LimitIndex, &[Decision])> {
        let alone = self.beside.iter().filter(|one| self.snapshot.limit(one.limit).denies());
        let alone = alone.filter_map(|one| one.state.as_ref().ok()).flat_map(State::counted);
        self.counted().chain(alone.map(|(_, limit, own)| (limit, own)))
    }

    /// Reports whether a limit denies: one that was asked for with others, or alone.
    pub(crate) fn is_denied(&self) -> bool {
        matches!(self.outcome, Outcome::Deny(_) | Outcome::Wait(_))
            || self.beside.iter().any(|one| one.denies && one.has_no_room())
    }

    /// Iterates over the limits that deny the request, with its keys.
    pub(crate) fn denials(&self) -> impl Iterator<Item = (LimitIndex, KeyHash)> {
        self.states.iter().flat_map(|state| {
            let denials = state.counted().filter(|(_, _, own)| denies(own));
            denials.map(|(n, limit, _)| (limit, state.part.counters[n].key))
        })
    }

    /// Iterates over the limits that only mark or observe the request, and would deny it.
    pub(crate) fn passed(&self) -> impl Iterator<Item = (LimitIndex, Option<KeyHash>)> {
        let counted = self.beside.iter().filter(|one| one.intent.needs_room() && one.has_no_room());
        let refused = self.beside_refused.iter().map(|&limit| (limit, None));
        counted.map(|one| (one.limit, Some(one.key))).chain(refused)
    }

    /// Returns the time of the decision by the store's clock, in microseconds since the Unix epoch: the latest, if there are several
    /// stores.
    pub(crate) fn at(&self) -> u64 {
        let answered = self.states.iter().map(|state| state.checked.outcome.response.at);
        answered.max().unwrap_or_else(|| self.snapshot.clock.now())
    }

    /// Returns the rate that a denial is due to, which decides about the response.
    pub(crate) fn told_denial(&self) -> Option<Told> {
        Told::of(&self.snapshot, true, self.reported())
    }

    /// Returns the seconds after which a query that is denied would be admitted, with the limit that says so; `None` if it is not denied,
    /// or no wait helps. The limit makes it longer at random.
    pub(crate) fn retry_after(&self) -> Option<(u64, LimitIndex)> {
        let (seconds, limit) = match &self.outcome {
            Outcome::Deny(Reason::Limits) | Outcome::Admit(_) if self.is_denied() => {
                let told = self.told_denial()?;
                (told.retry_after()?, told.limit)
            }
            // Another attempt may succeed soon.
            Outcome::Deny(Reason::StoreFailed { limit, .. } | Reason::SlotsExpired { limit, .. }) => {
                (1, *limit)
            }
            Outcome::Admit(_) | Outcome::Wait(_) | Outcome::Deny(_) | Outcome::Unknown(_) => return None,
        };
        Some((self.snapshot.limit(limit).with_jitter(seconds), limit))
    }

    /// Returns the mark of the limits that have counted the request, for sidecars behind a gateway that enforce them too.
    pub(crate) fn charged_mark(&self) -> Option<String> {
        let mut mark: Option<ChargedMark> = None;
        let charges = |one: &&StateBeside| one.intent.needs_room() || one.intent == Intent::Charge;
        let alone = self.beside.iter().filter(charges).filter_map(|one| one.state.as_ref().ok());
        for state in self.states.iter().chain(alone) {
            for (n, (index, counter)) in state.part.iter().enumerate() {
                let policy = &self.snapshot.policies[usize::from(index.policy)];
                let limit = &policy.prepared.limits[usize::from(index.limit)];
                let is_shared = policy.prepared.is_shared && limit.is_for_requests();
                // A descriptor may have brought a rate along that is counted elsewhere.
                let is_own = counter.limit.spec.scope == limit.scope;
                if is_shared && is_own && counter.cost > 0 && state.checked.charged(n) != Reservation::Nothing
                {
                    let new = || ChargedMark::new(self.snapshot.seconds(), rand::random());
                    let secret = self.snapshot.secret(policy);
                    mark.get_or_insert_with(new).add(secret, &limit.scope, counter.key.0);
                }
            }
        }
        mark.as_ref().and_then(ChargedMark::to_text)
    }

    /// Returns the store's failure, if local quota or `onStoreFailure` has decided in its place.
    pub(crate) fn failure(&self) -> Option<&'static str> {
        match self.outcome {
            Outcome::Unknown(fault)
            | Outcome::Deny(Reason::StoreFailed { fault, .. } | Reason::SlotsExpired { fault, .. }) => {
                Some(fault)
            }
            Outcome::Admit(_) | Outcome::Wait(_) | Outcome::Deny(_) => {
                self.states.iter().find_map(|state| state.checked.failure())
            }
        }
    }
}

impl StateBeside {
    /// Reports whether the limit was counted, and has no room.
    pub(crate) fn has_no_room(&self) -> bool {
        self.state.as_ref().is_ok_and(|state| !state.checked.outcome.response.admitted)
    }
}
