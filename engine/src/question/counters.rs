//! The counters of a question, by how they are checked.

use std::sync::Arc;

use sluice_config::descriptor::RateUnit;
use sluice_limiter::{Holder, Period};
use sluice_store::{LimitPlan, PlannedCounter};
use smallvec::SmallVec;

use crate::limit::active::{ActiveLimit, ActivePolicy};
use crate::limit::index::LimitIndex;
use crate::limit::slots::random_holder;
use crate::limit::snapshot::Snapshot;
use crate::question::status::{CurrentLimit, Outcome, Status};
use crate::question::token::Entry;

/// Most counters of a question: descriptors times the limits that count each.
pub(crate) const MAX_CHECKED: usize = 1024;

/// Charge, reservation or reading of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Use {
    /// The counter is read, and counts nothing.
    Look,
    /// The cost is charged if there is room.
    Ask,
    /// The cost was used: it is charged whether or not there is room.
    Charge,
    /// The cost is given back.
    GiveBack,
    /// The cost is charged if there is room, and settled later.
    /// It can be settled for this time.
    Reserve(Period),
    /// A reservation is settled: the cost is what was used. The one that an id names, or else the oldest.
    Settle(Option<(Holder, Entry)>),
}

/// A counter that is checked.
#[derive(Debug)]
pub(crate) struct Checked {
    /// Positions of the statuses that it is for.
    pub(crate) positions: SmallVec<[usize; 1]>,
    pub(crate) limit: LimitIndex,
    pub(crate) counter: PlannedCounter,
    pub(crate) what: Use,
    /// Name of the limit.
    pub(crate) name: Arc<str>,
    pub(crate) is_quota: bool,
    /// Whether the limit is in Shadow.
    pub(crate) is_observed: bool,
    /// Whether a policy has the limit, and not a domain of ratelimit's configuration.
    pub(crate) is_of_policy: bool,
    /// Position of the store that has the counter.
    pub(crate) store: usize,
    /// A check has each counter once. A counter that has two numbers in a question, because a descriptor brings one along, is
    /// checked again after all others.
    pub(crate) layer: usize,
}

impl Checked {
    /// Creates the counter of one status, which is enforced and no quota.
    pub(crate) fn new(
        position: usize,
        limit: LimitIndex,
        counter: PlannedCounter,
        what: Use,
        store: usize,
    ) -> Self {
        Self {
            positions: SmallVec::from_slice(&[position]),
            limit,
            counter,
            what,
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
        what: Use,
    ) -> Self {
        Self {
            name: active.name.clone(),
            is_observed: !active.denies(),
            is_of_policy: true,
            ..Self::new(position, limit, counter, what, policy.store)
        }
    }
}

/// The counters of a question by how they are checked.
#[derive(Debug, Default)]
pub(crate) struct Groups {
    /// Checked together, in the order of their layers and stores.
    pub(crate) asked: SmallVec<[Checked; 2]>,
    /// Each checked alone: those that deny nothing, and those whose cost is known already.
    pub(crate) alone: Vec<Checked>,
    /// A limit admits nothing, so what is asked for is only looked at.
    pub(crate) is_denied: bool,
    /// The number of the reservation, if the question reserves something.
    pub(crate) number: Option<Holder>,
    /// The number of reports that name a reservation, and not what was used.
    pub(crate) without_hits: usize,
}

impl Groups {
    /// Adds a counter to those that are checked as it is.
    pub(crate) fn add(&mut self, checked: Checked, is_shadow: bool) {
        match checked.what {
            Use::Look | Use::Charge | Use::GiveBack | Use::Settle(_) => self.alone.push(checked),
            Use::Ask | Use::Reserve(_) if checked.is_quota || checked.is_observed || is_shadow => {
                self.alone.push(checked);
            }
            Use::Ask | Use::Reserve(_) => add(&mut self.asked, checked),
        }
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

    /// Puts those that are checked together into their order.
    pub(crate) fn sorted(mut self) -> Self {
        self.asked.sort_by_key(|checked| (checked.layer, checked.store));
        self
    }
}

/// Time for which a reservation can be settled, if nobody says another one: an hour.
const RESERVED_FOR: Period = Period::HOUR;

/// Returns the plan of a limit whose charge may be corrected, and may be any cost: it is not leased.
pub(crate) fn strict(plan: &Arc<LimitPlan>) -> Arc<LimitPlan> {
    if plan.is_leased() { Arc::new(plan.strict()) } else { plan.clone() }
}

/// Returns the status of what a limit denies without counting it.
pub(crate) fn denied_without_counting(active: &ActiveLimit, outcome: Outcome) -> Status {
    let rate = active.base().plan.spec.rates.first();
    let period_millis = rate.map_or(0, |rate| rate.period.millis());
    let (unit, multiplier) = rate.map_or((RateUnit::Second, 1), RateUnit::of);
    let limit = CurrentLimit { requests: 0, period_millis, unit, multiplier, name: active.name.clone() };
    Status::nothing(outcome, limit, unit.seconds().saturating_mul(multiplier.into()), false)
}

/// Adds a counter to those that are checked together.
fn add(asked: &mut SmallVec<[Checked; 2]>, mut checked: Checked) {
    let (key, spec) = (checked.counter.key, checked.counter.limit.spec.clone());
    for other in asked.iter_mut().filter(|other| other.counter.key == key && other.store == checked.store) {
        let others = &other.counter.limit.spec;
        if *others == spec {
            other.counter.cost += checked.counter.cost;
            other.positions.extend(checked.positions);
            return;
        }
        if others.scope == spec.scope {
            checked.layer = checked.layer.max(other.layer + 1);
        }
    }
    asked.push(checked);
}
