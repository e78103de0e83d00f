//! The settlement of reservations: whoever takes one out of its ledger corrects its charge to what was used, so that it is settled
//! once. Until then it stays charged.

use std::sync::Arc;

use sluice_limiter::{Holder, MAX_CONCURRENT, MAX_COUNT, Period, Reserved};
use sluice_store::{KeyHash, LimitPlan, PlannedCounter, Reservation, Settlement, StoreError, Taking};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, timeout_at};

use crate::limit::correction::{Correction, spawn};
use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;
use crate::question::counters::strict;
use crate::question::token::{Entry, Token};

/// A counter with a reservation.
#[derive(Debug, Clone)]
pub(crate) struct Open {
    pub(crate) limit: LimitIndex,
    pub(crate) plan: Arc<LimitPlan>,
    pub(crate) key: KeyHash,
    /// The number of the reservation; `None` for the oldest.
    pub(crate) number: Option<Holder>,
    /// Whether the charge went to the counter that new keys share.
    pub(crate) overflowed: bool,
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
        // The rates that it was charged by, if the policy still has them.
        let limit = LimitIndex { rates: entry.rates, ..limit };
        let rates = snapshot.limit(limit).rates_or_base(limit.rates);
        is_own.then(|| Open {
            limit,
            plan: strict(&rates.plan),
            key: entry.key,
            number: Some(token.number),
            overflowed: entry.overflowed(),
        })
    };
    token.entries().filter_map(open).collect()
}

/// Settlements of the process that may be under way without anybody who waits for them.
static UNDER_WAY: Semaphore = Semaphore::const_new(4096);

/// Settles a reservation: `used` is what it has cost in the end, or else what was reserved. Waits until the deadline; a settlement that
/// has begun is finished in any case, unless the store stays away.
///
/// # Errors
/// The store did not answer. The reservation may or may not have been settled.
pub(crate) async fn settle(
    snapshot: &Arc<Snapshot>,
    open: Open,
    used: Option<u64>,
    deadline: Instant,
) -> Result<Settled, StoreError> {
    let (answer, settled) = oneshot::channel();
    begin(snapshot, open, used, |result| drop(answer.send(result)))?;
    match timeout_at(deadline, settled).await {
        Ok(Ok(result)) => result,
        Ok(Err(_)) | Err(_) => Err(StoreError::Timeout),
    }
}

/// Begins a settlement, which nobody needs to wait for.
///
/// # Errors
/// Too many are under way.
pub(crate) fn begin(
    snapshot: &Arc<Snapshot>,
    open: Open,
    used: Option<u64>,
    after: impl FnOnce(Result<Settled, StoreError>) + Send + 'static,
) -> Result<(), StoreError> {
    let room = UNDER_WAY.try_acquire().map_err(|_| StoreError::Overloaded)?;
    let snapshot = snapshot.clone();
    spawn(async move {
        let result = settle_whole(&snapshot, &open, used).await;
        drop(room);
        after(result);
    });
    Ok(())
}

async fn settle_whole(snapshot: &Snapshot, open: &Open, used: Option<u64>) -> Result<Settled, StoreError> {
    let limiter = snapshot.limiter(open.limit);
    // The number and the time are those of a reservation that is made, and play no part.
    let number = open.number.unwrap_or(Holder::FIRST);
    let ledger = open.plan.ledger(number, Period::HOUR).spec.clone();
    let taking = Taking { ledger, key: open.key, id: open.number };
    let Some(taken) = limiter.take(taking).await? else {
        return Ok(Settled::NotFound);
    };
    if let Some(concurrency) = &snapshot.limit(open.limit).concurrency {
        // Whose slot it is, only an id tells.
        if let Some(number) = open.number {
            let limit = concurrency.plan_under(number, Period::HOUR).spec.clone();
            let all = -(MAX_CONCURRENT as i64);
            let settlement = Settlement { limit, key: open.key, charged: 0, delta: all, overflowed: false };
            limiter.settle_in_store(settlement).await?;
        }
        return Ok(Settled::Slots);
    }
    let charged = if open.overflowed {
        Reservation::Overflow(taken.charged)
    } else {
        Reservation::Store(taken.charged)
    };
    let counter = PlannedCounter { limit: open.plan.clone(), key: open.key, cost: taken.cost };
    let used = used.unwrap_or(taken.cost).min(MAX_COUNT);
    let correction = Correction::to(used, limiter.clone(), counter, charged);
    if !correction.is_nothing() {
        correction.apply().await?;
    }
    Ok(Settled::Cost(taken))
}
