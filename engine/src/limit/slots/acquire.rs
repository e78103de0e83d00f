//! Checks a request whose counters include slots.

use std::sync::Arc;

use futures::future::join;
use sluice_store::{KeyHash, LimitPlan, Limiter, StoreError, StoreFault, StoreHealth};
use tokio::time::Instant;

use super::limit::ConcurrencyLimit;
use super::slot::Slot;
use super::table::{CounterSlots, MAX_COUNTERS, Slots};
use crate::limit::query::Part;
use crate::limit::snapshot::Snapshot;
use crate::limit::state::Checked;
use crate::stores::limiter_handle::LimiterHandle;

/// The error of a check whose task ended without a result: its runtime is shutting down.
const LOST: StoreError = StoreError::Unavailable(StoreFault::Unreachable);

/// Checks a part whose counters include slots, and returns the slots that were acquired.
///
/// # Errors
/// The store did not answer, and at least one limit denies in that case.
pub(crate) async fn check_with_slots(
    slots: &Slots,
    snapshot: &Snapshot,
    limiter: &LimiterHandle,
    part: &mut Part,
) -> Result<(Checked, Vec<Slot>), StoreError> {
    let mut pending = Vec::new();
    if limiter.health() != StoreHealth::Failing(StoreFault::Unconfigured) {
        for (&index, counter) in part.limits.iter().zip(part.counters.iter_mut()) {
            let Some(limit) = &snapshot.limit(index).concurrency else { continue };
            let Some((slot, plan)) = slots.prepare_check(limit, counter.key, limiter.limiter()) else {
                pending.iter_mut().for_each(Slot::denied);
                return Err(StoreError::Overloaded);
            };
            pending.push(slot);
            counter.limit = plan;
        }
    }
    let releases = slots.releases_before(&pending);
    if limiter.memory().is_some() {
        slots.send_all(releases).await;
        return check_and_settle(limiter, part, pending).await;
    }
    // A client that goes away must not cancel the calls, or the store's answers would be lost.
    let (slots, limiter, part) = (slots.clone(), limiter.clone(), part.clone());
    let call = tokio::spawn(async move {
        let check = check_and_settle(&limiter, &part, pending);
        if releases.is_empty() {
            return check.await;
        }
        // The first one is sent first, usually in the same batch.
        join(slots.send_all(releases), check).await.1
    });
    call.await.unwrap_or(Err(LOST))
}

/// Checks the counters and notes the result in each pending slot.
async fn check_and_settle(
    limiter: &LimiterHandle,
    part: &Part,
    mut slots: Vec<Slot>,
) -> Result<(Checked, Vec<Slot>), StoreError> {
    // An open circuit sends nothing.
    let circuit_open = matches!(limiter.health(), StoreHealth::Failing(_));
    let result = limiter.check(&part.counters).await.map(|outcome| Checked::new(part, outcome));
    let error = match &result {
        Ok(checked) => checked.outcome.failure.as_ref(),
        Err(error) => Some(error),
    };
    if let Some(error) = error {
        let unsent = circuit_open || *error == StoreError::Overloaded;
        slots.iter_mut().for_each(if unsent { Slot::denied } else { Slot::unanswered });
        return result.map(|checked| (checked, Vec::new()));
    }
    let checked = result?;
    if checked.outcome.response.admitted {
        slots.iter_mut().for_each(|slot| slot.granted(checked.outcome.response.at));
        Ok((checked, slots))
    } else {
        slots.iter_mut().for_each(Slot::denied);
        Ok((checked, Vec::new()))
    }
}

impl Slots {
    /// Prepares a check of a slot: its guard, and the plan to check. `None` if too many counters hold slots.
    pub(super) fn prepare_check(
        &self,
        limit: &Arc<ConcurrencyLimit>,
        key: KeyHash,
        limiter: &Arc<Limiter>,
    ) -> Option<(Slot, Arc<LimitPlan>)> {
        let until = Instant::now() + limit.lease();
        let mut table = self.0.lock();
        let counters = &mut table.counters;
        let mut holder = limit.current.load_full();
        let unusable = |counter: &CounterSlots| counter.uncertain || !Arc::ptr_eq(&counter.limiter, limiter);
        if counters.get(&(holder.holder.get(), key.0)).is_some_and(unusable) {
            limit.change_holder(&holder.spec);
            holder = limit.current.load_full();
        }
        let id = (holder.holder.get(), key.0);
        if counters.len() >= MAX_COUNTERS && !counters.contains_key(&id) {
            return None;
        }
        let new = || CounterSlots::new(limit.clone(), holder.spec.clone(), limiter.clone(), until);
        counters.entry(id).or_insert_with(new).pending += 1;
        drop(table);
        let plan = if limit.has_expired_slots() { &holder.plan_with_expired_slots } else { &holder.plan };
        Some((Slot::pending(self.0.clone(), id), plan.clone()))
    }
}
