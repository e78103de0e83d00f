//! The counters of a question, by how they are asked.

use std::sync::Arc;

use sluice_config::descriptor::RateUnit;
use sluice_config::prepared::Refusal;
use sluice_limiter::{Holder, Period};
use sluice_store::{LimitPlan, PlannedCounter};
use smallvec::SmallVec;

use crate::limit::active::{ActiveLimit, ActivePolicy};
use crate::limit::index::LimitIndex;
use crate::limit::query::Intent;
use crate::limit::rates::strict;
use crate::limit::slots::random_holder;
use crate::limit::snapshot::Snapshot;
use crate::question::status::{CurrentLimit, Outcome, Status};

/// Most counters of a question: descriptors times the limits that count each.
pub(crate) const MAX_CHECKED: usize = 1024;

/// A counter that is asked about.
#[derive(Debug)]
pub(crate) struct Asked {
    /// Positions of the statuses that it is for.
    pub(crate) positions: SmallVec<[usize; 1]>,
    pub(crate) limit: LimitIndex,
    pub(crate) counter: PlannedCounter,
    pub(crate) intent: Intent,
    /// The number of the reservation, if the question reserves something.
    pub(crate) number: Option<Holder>,
    /// Name of the limit.
    pub(crate) name: Arc<str>,
    pub(crate) is_quota: bool,
    /// Whether the limit denies nothing.
    pub(crate) is_observed: bool,
    /// Whether a policy has the limit, and not a domain of ratelimit's configuration.
    pub(crate) is_of_policy: bool,
    /// Position of the store that has the counter.
    pub(crate) store: usize,
    /// A call of a store has each counter once. A counter that has two numbers in a question, because a descriptor brings one along,
    /// is in another call.
    pub(crate) layer: usize,
}

impl Asked {
    /// Creates the counter of one status, which is enforced and no quota.
    pub(crate) fn new(
        position: usize,
        limit: LimitIndex,
        counter: PlannedCounter,
        intent: Intent,
        store: usize,
    ) -> Self {
        Self {
            positions: SmallVec::from_slice(&[position]),
            limit,
            counter,
            intent,
            number: None,
            name: Arc::default(),
            is_quota: false,
            is_observed: false,
            is_of_policy: false,
            store,
            layer: 0,
        }
    }

    /// Creates the counter of a limit of a policy.
    pub(crate) fn of_policy(
        position: usize,
        limit: LimitIndex,
        (policy, active): (&ActivePolicy, &ActiveLimit),
        counter: PlannedCounter,
        intent: Intent,
    ) -> Self {
        Self {
            name: active.name.clone(),
            is_observed: !active.denies(),
            is_of_policy: true,
            ..Self::new(position, limit, counter, intent, policy.store)
        }
    }
}

/// The counters of a question by how they are asked.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Asked together.
    pub(crate) asked: Vec<Asked>,
    /// Each asked alone: those that deny nothing, and those whose cost is known already.
    pub(crate) alone: Vec<Asked>,
    /// Whether something denies without counting, so that nothing else is counted.
    pub(crate) is_denied: bool,
    /// The limit that does, if there is one.
    pub(crate) refused: Option<(LimitIndex, Refusal)>,
    /// Limits that only mark or observe, and would deny without counting.
    pub(crate) beside_refused: SmallVec<[LimitIndex; 1]>,
    /// The number of the reservation, if the question reserves something.
    pub(crate) number: Option<Holder>,
    /// The number of reports that name a reservation, and not what was used.
    pub(crate) without_hits: usize,
}

impl Groups {
    /// Adds a counter to those that are asked as it is.
    pub(crate) fn add(&mut self, one: Asked, is_shadow: bool) {
        match one.intent {
            Intent::Peek | Intent::Charge | Intent::GiveBack | Intent::Settle(_) => self.alone.push(one),
            Intent::Consume | Intent::Reserve(_) if one.is_quota || one.is_observed || is_shadow => {
                self.alone.push(one);
            }
            Intent::Consume | Intent::Reserve(_) => add(&mut self.asked, one),
        }
    }

    /// Adds a limit that denies without counting. Returns the status.
    pub(crate) fn refuse(
        &mut self,
        active: &ActiveLimit,
        refused: (LimitIndex, Refusal),
        is_shadow: bool,
    ) -> Status {
        if active.denies() && !is_shadow {
            self.is_denied = true;
            self.refused = self.refused.or(Some(refused));
        } else {
            self.beside_refused.push(refused.0);
        }
        let outcome = if active.denies() { Outcome::OverLimit } else { Outcome::Observed };
        denied_without_counting(active, outcome)
    }

    /// Returns the number of counters.
    pub(crate) fn len(&self) -> usize {
        self.asked.len() + self.alone.len()
    }

    /// Returns the number of the reservation.
    pub(crate) fn number(&mut self) -> Holder {
        *self.number.get_or_insert_with(random_holder)
    }

    /// Returns for how long a cost of a limit is reserved: for `lasts`, or for the time that the policy says. Also returns the plan of
    /// its counter.
    pub(crate) fn reserve(
        &mut self,
        snapshot: &Snapshot,
        index: LimitIndex,
        lasts: Option<Period>,
    ) -> (Period, Arc<LimitPlan>) {
        let active = snapshot.limit(index);
        let Some(concurrency) = &active.concurrency else {
            self.number();
            return (lasts.unwrap_or(RESERVED_FOR), strict(&snapshot.rates(index).plan));
        };
        let abandoned_for = || Period::from_millis(active.abandoned_for.as_millis() as u64).ok();
        let lease = lasts.or_else(abandoned_for).unwrap_or(Period::HOUR).min(Period::HOUR);
        (lease, concurrency.plan_under(self.number(), lease))
    }
}

/// Time for which a reservation can be settled, if nobody says another one: an hour.
const RESERVED_FOR: Period = Period::HOUR;

/// Returns the status of what a limit denies without counting it.
fn denied_without_counting(active: &ActiveLimit, outcome: Outcome) -> Status {
    let rate = active.base().plan.spec.rates.first();
    let period_millis = rate.map_or(0, |rate| rate.period.millis());
    let (unit, multiplier) = rate.map_or((RateUnit::Second, 1), RateUnit::of);
    let limit = CurrentLimit { requests: 0, period_millis, unit, multiplier, name: active.name.clone() };
    Status::nothing(outcome, limit, None, false)
}

/// Adds a counter to those that are asked together.
fn add(asked: &mut Vec<Asked>, mut one: Asked) {
    let (key, spec) = (one.counter.key, one.counter.limit.spec.clone());
    for other in asked.iter_mut().filter(|other| other.counter.key == key && other.store == one.store) {
        let others = &other.counter.limit.spec;
        if *others == spec {
            other.counter.cost += one.counter.cost;
            other.positions.extend(one.positions);
            return;
        }
        if others.scope == spec.scope {
            one.layer = one.layer.max(other.layer + 1);
        }
    }
    asked.push(one);
}
