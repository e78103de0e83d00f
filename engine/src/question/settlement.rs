//! The settlement of reservations: whoever takes one out of its ledger corrects its charge to what was used, so that it is settled
//! once. Until then it stays charged.

use std::sync::Arc;

use sluice_limiter::{Holder, MAX_CONCURRENT, MAX_COUNT, Period, Reserved};
use sluice_store::{KeyHash, LimitPlan, PlannedCounter, Reservation, Settlement, StoreError, Taking};
use tokio::sync::oneshot;
use tokio::time::{Instant, timeout_at};

use crate::limit::correction::Correction;
use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;
use crate::question::counters::strict;
use crate::question::token::{Entry, Token};

/// A counter with a reservation.
#[derive(Debug)]
pub(crate) struct Open {
    pub(crate) limit: LimitIndex,
    pub(crate) plan: Arc<LimitPlan>,
    pub(crate) key: KeyHash,
    /// The reservation; `None` for the oldest.
    pub(crate) id: Option<(Holder, Entry)>,
}

/// The settlement of a counter.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Settled {
    /// The reservation was taken, and its charge corrected.
    Cost(Reserved),
    /// The slots are given back.
    Slots,
    /// There is no such reservation: it was settled before, or has expired.
    NotFound,
}

/// Returns the counters of an id whose limits are in force.
pub(crate) fn counters_of(snapshot: &Snapshot, token: &Token) -> Vec<Open> {
    let open = |entry: Entry| {
        let limit = snapshot.by_scope(entry.scope)?;
        let policy = &snapshot.policies[usize::from(limit.policy)];
        let scope = &policy.prepared.limits[usize::from(limit.limit)].scope;
        let is_own = entry.is_authentic(snapshot.secret(policy), token.number, scope);
        let plan = strict(&snapshot.limit(limit).base().plan);
        is_own.then_some(Open { limit, plan, key: entry.key, id: Some((token.number, entry)) })
    };
    token.entries().filter_map(open).collect()
}

/// Settles a reservation: `used` is what it has cost in the end, or else what was reserved. Waits for the correction until the deadline;
/// it is made in any case, unless the store stays away.
///
/// # Errors
/// The store did not answer. The reservation may or may not have been taken.
pub(crate) async fn settle(
    snapshot: &Snapshot,
    open: &Open,
    used: Option<u64>,
    deadline: Instant,
) -> Result<Settled, StoreError> {
    let limiter = snapshot.limiter(open.limit);
    // The number and the time are those of a reservation that is made, and play no part.
    let number = open.id.map_or(Holder::FIRST, |(number, _)| number);
    let ledger = open.plan.ledger(number, Period::HOUR).spec.clone();
    let taking = Taking { ledger, key: open.key, id: open.id.map(|(number, _)| number) };
    let taken = timeout_at(deadline, limiter.take(taking)).await.unwrap_or(Err(StoreError::Timeout))?;
    let Some(taken) = taken else {
        return Ok(Settled::NotFound);
    };
    if let Some(concurrency) = &snapshot.limit(open.limit).concurrency {
        // Whose slot it is, only an id tells.
        if let Some((number, _)) = open.id {
            let limit = concurrency.plan_under(number, Period::HOUR).spec.clone();
            let all = -(MAX_CONCURRENT as i64);
            let settlement = Settlement { limit, key: open.key, charged: 0, delta: all, overflowed: false };
            let given = timeout_at(deadline, limiter.settle_in_store(settlement)).await;
            given.unwrap_or(Err(StoreError::Timeout))?;
        }
        return Ok(Settled::Slots);
    }
    let charged = match open.id {
        Some((_, entry)) => entry.charged(taken.charged),
        None => Reservation::Store(taken.charged),
    };
    let counter = PlannedCounter { limit: open.plan.clone(), key: open.key, cost: taken.cost };
    let used = used.unwrap_or(taken.cost).min(MAX_COUNT);
    let correction = Correction::to(used, limiter.clone(), counter, charged);
    if !correction.is_nothing() {
        let (corrected, wait) = oneshot::channel::<()>();
        correction.start(corrected);
        let _ = timeout_at(deadline, wait).await;
    }
    Ok(Settled::Cost(taken))
}
