//! Decides a request: one check for all enforced limits, one beside it for each limit that marks or is in Shadow, and the
//! policies' `onStoreFailure` if the store does not answer. Every decision is counted here, where it is made.

use std::sync::Arc;

use futures::future::{join, join_all};
use sluice_config::policy::OnStoreFailure;
use sluice_config::prepared::Refusal;
use sluice_store::{KeyHash, PlannedCounter, StoreError};
use smallvec::{SmallVec, smallvec};

use crate::limit::active::Effect;
use crate::limit::adaptive::Origin;
use crate::limit::check::Checked;
use crate::limit::check_stores::check_all;
use crate::limit::delay_queue::{Delay, QueueFull};
use crate::limit::held::Held;
use crate::limit::index::LimitIndex;
use crate::limit::matching::MatchedLimits;
use crate::limit::queue::{QueueDenial, Wait};
use crate::limit::settle::{Charges, Upload, check_whole};
use crate::limit::slots::{Slot, Slots};
use crate::limit::snapshot::Snapshot;
use crate::limit::status::RateLimitStatus;

/// The decision about a request.
#[derive(Debug)]
pub(crate) enum Admission {
    /// No enforced limit matches it.
    Unlimited,
    /// Every limit had room and was charged. The request has to wait out the delay first, if there is one.
    Admitted(RateLimitStatus, Option<Delay>),
    /// Every limit had room, but a delay queue is full. The charges are refunded.
    QueueFull(QueueFull),
    /// At least one limit had no room. Nothing was charged.
    Denied(RateLimitStatus),
    /// At least one limit had no room, and all of those have queues. Nothing was charged, and the denial is not counted yet.
    Waits {
        status: RateLimitStatus,
        wait: Wait,
        /// Whether local quota has decided, because the store failed.
        by_local_quota: bool,
    },
    /// The request cannot wait in a queue, or not any longer.
    NotQueued(QueueDenial),
    /// The request meets more limits than one check holds.
    TooManyLimits,
    /// This limit denies the request without counting it.
    Refused(LimitIndex, Refusal),
    /// An adaptive limit is reached. Nothing was charged.
    Shed(LimitIndex),
    /// The store did not answer, and slots of this process may have been given to other processes.
    SlotsExpired {
        /// The limit that holds the slots.
        limit: LimitIndex,
        /// The store's failure, as in `x-sluice-store-failure`.
        fault: &'static str,
    },
    /// The store did not answer.
    StoreFailed {
        /// The store's failure, as in `x-sluice-store-failure`.
        fault: &'static str,
        /// A limit whose policy rejects the request in this case, if there is one.
        denied_by: Option<LimitIndex>,
    },
}

/// A request that was decided.
#[derive(Debug)]
pub(crate) struct Decided {
    /// The snapshot whose limits have decided.
    pub(crate) snapshot: Arc<Snapshot>,
    pub(crate) admission: Admission,
    /// Everything that the request holds until it ends.
    pub(crate) held: Held,
    /// The limits that would deny the request if they did not only mark or observe it.
    pub(crate) passed: Passed,
}

/// Limits that mark or observe a request instead of denying it, with its keys.
pub(crate) type Passed = SmallVec<[(LimitIndex, Option<KeyHash>); 1]>;

impl Decided {
    /// A request that holds nothing.
    pub(crate) fn without(snapshot: Arc<Snapshot>, admission: Admission) -> Self {
        Self { snapshot, admission, held: Held::default(), passed: Passed::new() }
    }
}

/// Decides a request. The limits are taken, and not moved as a whole: a future keeps each argument.
pub(crate) async fn decide(snapshot: Arc<Snapshot>, matched: &mut MatchedLimits, slots: &Slots) -> Decided {
    if matched.meets_too_many {
        return Decided::without(snapshot, Admission::TooManyLimits);
    }
    let mut held = Held { abandoned_for: matched.abandoned_for, ..Held::default() };
    let mut rooms = SmallVec::new();
    if matched.refused.is_none() {
        match acquire_permits(&snapshot, matched, &mut held) {
            Ok(acquired) => rooms = acquired,
            Err(limit) => return Decided { held, ..Decided::without(snapshot, Admission::Shed(limit)) },
        }
    }
    let mut passed = Passed::new();
    let admission = decide_by_counters(&snapshot, matched, slots, &mut held, &mut passed).await;
    // A request that waits is decided several times, and counts at the end.
    if !matches!(admission, Admission::Waits { .. }) {
        count_permits(&snapshot, &matched.adaptive, &rooms);
        if matched.refused.is_none() {
            for &index in &matched.beside_refused {
                snapshot.limit(index).count_passed_denial();
                passed.push((index, None));
            }
        }
    }
    Decided { snapshot, admission, held, passed }
}

/// Acquires the permits of all adaptive limits, or none. Returns for each whether it had room.
fn acquire_permits(
    snapshot: &Snapshot,
    matched: &MatchedLimits,
    held: &mut Held,
) -> Result<SmallVec<[bool; 1]>, LimitIndex> {
    let mut rooms = SmallVec::new();
    for &(index, from) in &matched.adaptive {
        let limit = snapshot.limit(index);
        let Some(adaptive) = &limit.adaptive else { continue };
        let (permit, had_room) = match limit.effect {
            Effect::Deny => match adaptive.try_acquire(from) {
                Some(permit) => (permit, true),
                None => {
                    limit.metrics.denied.inc();
                    held.permits.clear();
                    return Err(index);
                }
            },
            Effect::Mark(_) | Effect::Observe => adaptive.acquire_anyway(from),
        };
        rooms.push(had_room);
        held.permits.push(permit);
    }
    Ok(rooms)
}

/// Counts the decisions of adaptive limits that have not shed the request.
fn count_permits(snapshot: &Snapshot, adaptive: &[(LimitIndex, Origin)], rooms: &[bool]) {
    let limits =
        adaptive.iter().map(|&(index, _)| snapshot.limit(index)).filter(|limit| limit.adaptive.is_some());
    for (limit, had_room) in limits.zip(rooms) {
        let metric = if *had_room { &limit.metrics.admitted } else { &limit.metrics.shadow_denied };
        metric.inc();
    }
}

async fn decide_by_counters(
    snapshot: &Arc<Snapshot>,
    matched: &mut MatchedLimits,
    slots: &Slots,
    held: &mut Held,
    passed: &mut Passed,
) -> Admission {
    if let Some((index, refusal)) = matched.refused {
        snapshot.limit(index).metrics.denied.inc();
        return Admission::Refused(index, refusal);
    }
    let upload = matched.counts_upload.then(Upload::default);
    if let Some(upload) = &upload {
        held.charges.meter(upload.meter());
    }
    let result = if matched.beside.is_empty() {
        check_enforced(slots, snapshot, matched).await
    } else {
        // In memory of its own, which the requests that meet no such limit do not need.
        let (result, of_others) =
            Box::pin(check_with_beside(slots, snapshot, matched, upload.as_ref())).await;
        for (slots, charges, denied) in of_others {
            held.slots.extend(slots);
            held.charges.extend(charges);
            passed.extend(denied);
        }
        result
    };
    let MatchedLimits { enforced: limits, counters, .. } = matched;
    let (checked, acquired) = match result {
        None => return Admission::Unlimited,
        Some(Err(error)) => return without_store(snapshot, limits, error.as_str()),
        Some(Ok(checked)) => checked,
    };
    held.slots.extend(acquired);
    let failure = checked.failure();
    if let Some(fault) = failure.filter(|_| checked.uncounted.count_ones() as usize == limits.len()) {
        return without_store(snapshot, limits, fault);
    }
    let by_local_quota = checked.by_local_quota();
    let Checked { outcome, uncounted } = checked;
    for usage in &outcome.response.key_usages.0 {
        if let Some(&limit) = limits.get(usize::from(usage.counter)) {
            snapshot.limit(limit).metrics.record_key(*usage);
        }
    }
    let admitted = outcome.response.admitted;
    let denied_keys =
        if admitted { SmallVec::new() } else { counters.iter().map(|counter| counter.key).collect() };
    let status = RateLimitStatus {
        snapshot: snapshot.clone(),
        limits: std::mem::take(limits),
        response: outcome.response,
        reservations: outcome.reservations,
        failure,
        uncounted,
        denied_keys,
    };
    if !admitted {
        if matched.has_queue
            && let Some(wait) = Wait::of(snapshot, &status.limits, counters, &status.response)
        {
            return Admission::Waits { status, wait, by_local_quota };
        }
        count(&status, by_local_quota);
        return Admission::Denied(status);
    }
    match Delay::of(&status, counters) {
        Ok(delay) => {
            count(&status, by_local_quota);
            if matched.settles {
                let charged = status.limits.iter().zip(&*counters).zip(&status.reservations);
                for ((&limit, counter), &reservation) in charged {
                    held.charges.add(snapshot, limit, counter, reservation, upload.as_ref());
                }
            }
            Admission::Admitted(status, delay)
        }
        Err(full) => {
            snapshot.limit(full.limit).metrics.denied.inc();
            Admission::QueueFull(full)
        }
    }
}

/// The result of the check of all enforced limits, with the slots that were acquired; `None` without such limits.
type EnforcedResult = Option<Result<(Checked, Vec<Slot>), StoreError>>;

async fn check_enforced(
    slots: &Slots,
    snapshot: &Arc<Snapshot>,
    matched: &mut MatchedLimits,
) -> EnforcedResult {
    let MatchedLimits { enforced, counters, has_slots, settles, .. } = matched;
    if counters.is_empty() {
        None
    } else if *settles {
        Some(check_whole(slots, snapshot, enforced, counters, *has_slots).await)
    } else {
        Some(check_all(slots, snapshot, enforced, counters, *has_slots).await)
    }
}

/// Checks the enforced limits together, and each of those that deny nothing alone.
async fn check_with_beside(
    slots: &Slots,
    snapshot: &Arc<Snapshot>,
    matched: &mut MatchedLimits,
    upload: Option<&Upload>,
) -> (EnforcedResult, Vec<CheckedBeside>) {
    let beside = std::mem::take(&mut matched.beside)
        .into_iter()
        .map(|(index, counter)| check_beside(slots, snapshot, index, counter, upload));
    let beside = join_all(beside);
    if !matched.has_queue {
        return join(check_enforced(slots, snapshot, matched), beside).await;
    }
    // A request that waits is checked several times, but counts once.
    let result = check_enforced(slots, snapshot, matched).await;
    let MatchedLimits { enforced, counters, .. } = matched;
    let waits = matches!(&result, Some(Ok((checked, _)))
        if Wait::of(snapshot, enforced, counters, &checked.outcome.response).is_some());
    (result, if waits { Vec::new() } else { beside.await })
}

/// The charges of a limit that denies nothing: its slots, the charge that the outcome corrects, and the limit and the key if it
/// would deny the request.
type CheckedBeside = (Vec<Slot>, Charges, Option<(LimitIndex, Option<KeyHash>)>);

/// Checks one limit that denies nothing.
async fn check_beside(
    slots: &Slots,
    snapshot: &Arc<Snapshot>,
    index: LimitIndex,
    counter: PlannedCounter,
    upload: Option<&Upload>,
) -> CheckedBeside {
    let (mut charges, key) = (Charges::default(), counter.key);
    let limit = snapshot.limit(index);
    let mut counters: SmallVec<[PlannedCounter; 2]> = smallvec![counter];
    let has_slots = limit.concurrency.is_some();
    let limits = smallvec![index];
    let result = if limit.settlement.is_some() {
        check_whole(slots, snapshot, &limits, &mut counters, has_slots).await
    } else {
        check_all(slots, snapshot, &limits, &mut counters, has_slots).await
    };
    match result {
        Ok((checked, acquired)) if checked.uncounted == 0 => {
            let admitted = checked.outcome.response.admitted;
            let metrics = &limit.metrics;
            checked.outcome.response.key_usages.0.iter().for_each(|usage| metrics.record_key(*usage));
            if admitted {
                metrics.admitted.inc();
            } else {
                limit.count_passed_denial();
            }
            if checked.by_local_quota() {
                metrics.by_local_quota(admitted).inc();
            }
            for (counter, &reservation) in counters.iter().zip(&checked.outcome.reservations) {
                charges.add(snapshot, index, counter, reservation, upload);
            }
            (acquired, charges, (!admitted).then_some((index, Some(key))))
        }
        Ok(_) | Err(_) => {
            limit.metrics.fallback_admitted.inc();
            (Vec::new(), charges, None)
        }
    }
}

/// Adds a decision to the metrics of each limit that made it.
pub(crate) fn count(status: &RateLimitStatus, by_local_quota: bool) {
    let admitted = status.response.admitted;
    for (limit, decisions) in status.counted() {
        let metrics = &status.snapshot.limit(limit).metrics;
        if admitted {
            metrics.admitted.inc();
        } else if let Some(blocked) = &metrics.blocked
            && decisions.last().is_some_and(|block| !block.admitted)
        {
            blocked.inc();
        } else if decisions.iter().any(|decision| !decision.admitted) {
            metrics.denied.inc();
        } else {
            continue;
        }
        if by_local_quota {
            metrics.by_local_quota(admitted).inc();
        }
    }
    if admitted && status.uncounted != 0 {
        for (n, &limit) in status.limits.iter().enumerate() {
            if status.uncounted & 1 << n != 0 {
                status.snapshot.limit(limit).metrics.fallback_admitted.inc();
            }
        }
    }
}

/// Decides a request that neither the store nor local quota has counted.
fn without_store(snapshot: &Snapshot, limits: &[LimitIndex], fault: &'static str) -> Admission {
    let expired = limits.iter().copied().find(|&index| snapshot.limit(index).has_expired_slots());
    let denies = |index: &LimitIndex| snapshot.policy(*index).on_store_failure == OnStoreFailure::Deny;
    let denied_by = limits.iter().copied().find(denies);
    let deny = expired.or(denied_by).is_some();
    for &index in limits {
        let metrics = &snapshot.limit(index).metrics;
        let metric = if deny { &metrics.fallback_denied } else { &metrics.fallback_admitted };
        metric.inc();
    }
    match expired {
        Some(limit) => Admission::SlotsExpired { limit, fault },
        None => Admission::StoreFailed { fault, denied_by },
    }
}
