//! The settlement of reservations: one call of the store takes it out of its ledger and corrects its charge to what was used, so
//! that it is settled once, and whole. Until then it stays charged.

use std::sync::Arc;

use sluice_limiter::{Holder, MAX_COUNT, Period, Reserved};
use sluice_store::{
    KeyHash, LimitPlan, Limiter, Lookup, PlannedCounter, Reservation, Settlement, StoreError, Taking,
};
use tokio::sync::{Semaphore, oneshot};
use tokio::time::{Instant, sleep, timeout_at};

use crate::limit::correction::{HEALTH_INTERVAL, LONGEST_WAIT, spawn};
use crate::limit::index::LimitIndex;
use crate::limit::query::Part;
use crate::limit::rates::strict;
use crate::limit::snapshot::Snapshot;
use crate::limit::token::{Entry, Token};

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

impl Open {
    /// Returns the reservation in a counter of a part, if something is reserved there, or may be. `charged` is where the charge went,
    /// if that is known.
    pub(crate) fn of(part: &Part, n: usize, charged: Option<Reservation>) -> Option<Self> {
        let (number, counters) = part.reserved.as_deref()?;
        let PlannedCounter { limit: plan, key, cost } = &part.counters[n];
        (counters.contains(&n) && *cost > 0).then(|| Self {
            limit: part.limits[n],
            plan: plan.clone(),
            key: *key,
            number: Some(*number),
            overflowed: matches!(charged, Some(Reservation::Overflow(_))),
        })
    }
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
/// has begun is finished in any case, unless the store stays away for ten seconds.
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

/// Settles until the store has answered, for a limited time. Each call may be repeated: without the reservation nothing happens.
async fn settle_whole(snapshot: &Snapshot, open: &Open, used: Option<u64>) -> Result<Settled, StoreError> {
    let limiter = snapshot.limiter(open.limit);
    let until = Instant::now() + LONGEST_WAIT;
    let mut sent = None;
    loop {
        match settle_once(snapshot, limiter, open, used, &mut sent).await {
            Err(_) if Instant::now() < until => sleep(HEALTH_INTERVAL).await,
            result => return result,
        }
    }
}

/// Settles by a look at the reservation, which has its cost, and a call that corrects the charge if the reservation is still there.
/// `sent` is the one of an earlier call without an answer.
async fn settle_once(
    snapshot: &Snapshot,
    limiter: &Limiter,
    open: &Open,
    used: Option<u64>,
    sent: &mut Option<Reserved>,
) -> Result<Settled, StoreError> {
    // The number and the time are those of a reservation that is made, and play no part.
    let ledger = open.plan.ledger(Holder::FIRST, Period::HOUR).spec.clone();
    let concurrency = snapshot.limit(open.limit).concurrency.as_ref();
    let settled = |reserved| if concurrency.is_some() { Settled::Slots } else { Settled::Cost(reserved) };
    loop {
        // Rule: settle.repeats-same.
        let id = sent.map_or(open.number, |reserved| Some(reserved.id));
        let lookup = Lookup { ledger: ledger.clone(), key: open.key, id };
        let Some(reserved) = limiter.find(lookup).await? else {
            // The earlier call has settled it.
            return Ok(sent.map_or(Settled::NotFound, settled));
        };
        let (plan, used) = match concurrency {
            Some(concurrency) => (concurrency.plan_under(reserved.id, Period::HOUR), 0),
            None => (open.plan.clone(), used.unwrap_or(reserved.cost)),
        };
        let correction = Settlement {
            limit: plan.spec.clone(),
            key: open.key,
            // Rule: settle.names-charge.
            charged: reserved.charged,
            // Both are at most 2^40.
            delta: used.min(MAX_COUNT) as i64 - reserved.cost.min(MAX_COUNT) as i64,
            overflowed: open.overflowed,
            least: 0,
        };
        let is_repeated = sent.replace(reserved).is_some();
        // Rule: settle.takes-and-corrects.
        if limiter.take(&plan, Taking { ledger: ledger.clone(), id: reserved.id, correction }).await?
            || is_repeated
        {
            // Between the look and this call, the earlier one may have arrived after all.
            return Ok(settled(reserved));
        }
        // Another one was quicker. Then the oldest is the next.
        *sent = None;
        if open.number.is_some() {
            return Ok(Settled::NotFound);
        }
    }
}
