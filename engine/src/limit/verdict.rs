//! The verdict about a query: its outcome, the state of each limit, and what is held until the end. Answers and metrics are made from
//! it.

use std::sync::Arc;

use sluice_config::prepared::Refusal;
use sluice_limiter::Decision;
use sluice_store::{CheckOutcome, KeyHash, OnStoreFailure, Reservation, Source, StoreError};
use smallvec::SmallVec;

use crate::limit::delay_queue::{Delay, QueueFull};
use crate::limit::held::Held;
use crate::limit::index::LimitIndex;
use crate::limit::query::{Intent, Part};
use crate::limit::queue::{QueueDenial, Wait};
use crate::limit::snapshot::Snapshot;
use crate::limit::told::Told;

/// What is done about a request.
#[derive(Debug)]
pub(crate) enum Outcome {
    /// It is admitted, after the delay if there is one. Every limit had room and was charged.
    Admit(Option<Delay>),
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
    /// What was asked for together, in the order of the query, if the stores have answered.
    pub(crate) states: States,
    /// What was asked beside it, in the order of the query. Empty if it was not asked.
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

/// The states of the parts of a query.
pub(crate) type States = SmallVec<[State; 1]>;

/// The state of a part.
#[derive(Debug)]
pub(crate) struct State {
    pub(crate) part: Part,
    pub(crate) checked: Checked,
}

/// The answer of a store.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) outcome: CheckOutcome,
    /// Bit mask of the counters that neither the store nor local quota has counted: the store failed, and the
    /// `onStoreFailure` of their limits is `Allow`.
    pub(crate) uncounted: u64,
}

/// The state of a counter that was asked alone.
#[derive(Debug)]
pub(crate) struct StateBeside {
    pub(crate) limit: LimitIndex,
    pub(crate) key: KeyHash,
    pub(crate) intent: Intent,
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
        Told::of(&self.snapshot, true, self.counted())
    }

    /// Returns the seconds after which a query that is denied would be admitted, with the limit that says so; `None` if it is not denied,
    /// or no wait helps. The limit makes it longer at random.
    pub(crate) fn retry_after(&self) -> Option<(u64, LimitIndex)> {
        let (seconds, limit) = match &self.outcome {
            Outcome::Deny(Reason::Limits) => {
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

impl State {
    /// Iterates over the limits with their position in the part and the decisions of their rates.
    pub(crate) fn decisions(&self) -> impl Iterator<Item = (usize, LimitIndex, &[Decision])> {
        let mut rest = &self.checked.outcome.response.decisions[..];
        self.part.iter().enumerate().map(move |(n, (limit, counter))| {
            let rates = counter.limit.spec.rates.len().min(rest.len());
            let (own, others) = rest.split_at(rates);
            rest = others;
            (n, limit, own)
        })
    }

    /// Iterates over those of them that were counted.
    pub(crate) fn counted(&self) -> impl Iterator<Item = (usize, LimitIndex, &[Decision])> {
        self.decisions().filter(|(n, ..)| self.checked.is_counted(*n))
    }
}

impl Checked {
    pub(crate) fn new(part: &Part, outcome: CheckOutcome) -> Self {
        let mut uncounted = 0;
        if outcome.failure.is_some() {
            for (n, ((_, counter), reservation)) in part.iter().zip(&outcome.reservations).enumerate() {
                let admits = counter.limit.on_failure == OnStoreFailure::Allow;
                uncounted |= u64::from(admits && *reservation == Reservation::Nothing) << n;
            }
        }
        Self { outcome, uncounted }
    }

    /// Reports whether the store or local quota has counted in a counter.
    pub(crate) fn is_counted(&self, n: usize) -> bool {
        self.uncounted & 1 << n == 0
    }

    /// Notes that what was charged is given back, because another part is denied.
    pub(crate) fn give_back(&mut self, part: &Part) {
        let mut decisions = self.outcome.response.decisions.iter_mut();
        for ((_, counter), charged) in part.iter().zip(&self.outcome.reservations) {
            let cost = if *charged == Reservation::Nothing { 0 } else { counter.cost };
            for decision in decisions.by_ref().take(counter.limit.spec.rates.len()) {
                decision.remaining =
                    decision.remaining.saturating_add(cost).min(decision.limit.max(decision.remaining));
            }
        }
        self.outcome.reservations.fill(Reservation::Nothing);
    }

    /// Returns where the charge to a counter went.
    pub(crate) fn charged(&self, n: usize) -> Reservation {
        self.outcome.reservations.get(n).copied().unwrap_or(Reservation::Nothing)
    }

    /// Reports whether something was reserved in a counter of the part, and is in its ledger.
    pub(crate) fn is_listed(&self, part: &Part, n: usize) -> bool {
        let ledger = part.reserved.as_ref().and_then(|reserved| reserved.1.iter().position(|&of| of == n));
        let charged = ledger.and_then(|ledger| self.outcome.reservations.get(part.limits.len() + ledger));
        matches!(charged, Some(Reservation::Store(_)))
    }

    /// Returns the store's failure as in `x-sluice-store-failure`, if the store was called and failed.
    pub(crate) fn failure(&self) -> Option<&'static str> {
        self.outcome.failure.as_ref().map(StoreError::as_str)
    }

    /// Reports whether local quota decided in place of a store that failed.
    pub(crate) fn by_local_quota(&self) -> bool {
        self.outcome.failure.is_some() && self.outcome.source == Source::LocalQuota
    }
}

impl StateBeside {
    /// Reports whether the limit was counted, and has no room.
    pub(crate) fn has_no_room(&self) -> bool {
        self.state.as_ref().is_ok_and(|state| !state.checked.outcome.response.admitted)
    }
}

/// Reports whether any rate of a limit denies.
pub(crate) fn denies(decisions: &[Decision]) -> bool {
    decisions.iter().any(|decision| !decision.admitted)
}
