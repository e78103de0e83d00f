//! Decides a request: one check for all enforced limits, one beside it for each limit in shadow mode, and the
//! policies' `onStoreFailure` if the store does not answer. Every decision is counted here, where it is made.

use std::sync::Arc;

use futures::future::{join, join_all};
use sluice_config::policy::{Mode, OnStoreFailure};
use sluice_config::prepared::Refusal;
use sluice_store::PlannedCounter;
use smallvec::{SmallVec, smallvec};

use crate::config::snapshot::Snapshot;
use crate::limit::active::LimitIndex;
use crate::limit::check::Checked;
use crate::limit::check_stores::check_all;
use crate::limit::delay_queue::{Delay, QueueFull};
use crate::limit::held::Held;
use crate::limit::matching::MatchedLimits;
use crate::limit::settle::{Charges, Upload, check_whole};
use crate::limit::slots::{Slot, Slots};
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

/// Decides a request, and returns what it holds until it ends.
pub(crate) async fn decide(
    snapshot: Arc<Snapshot>,
    matched: MatchedLimits,
    slots: &Slots,
) -> (Admission, Held) {
    let mut held = Held { abandoned_for: matched.abandoned_for, ..Held::default() };
    if matched.refused.is_none()
        && let Err(limit) = acquire_permits(&snapshot, &matched, &mut held)
    {
        return (Admission::Shed(limit), held);
    }
    (decide_by_counters(snapshot, matched, slots, &mut held).await, held)
}

/// Acquires the permits of all adaptive limits, or none.
fn acquire_permits(snapshot: &Snapshot, matched: &MatchedLimits, held: &mut Held) -> Result<(), LimitIndex> {
    for &index in &matched.adaptive {
        let limit = snapshot.limit(index);
        let Some(adaptive) = &limit.adaptive else { continue };
        let permit = match limit.mode {
            Mode::Enforce => {
                let Some(permit) = adaptive.try_acquire() else {
                    limit.metrics.denied.inc();
                    held.permits.clear();
                    return Err(index);
                };
                limit.metrics.admitted.inc();
                permit
            }
            Mode::Shadow => {
                let (permit, had_room) = adaptive.acquire_anyway();
                let metric = if had_room { &limit.metrics.admitted } else { &limit.metrics.shadow_denied };
                metric.inc();
                permit
            }
        };
        held.permits.push(permit);
    }
    Ok(())
}

async fn decide_by_counters(
    snapshot: Arc<Snapshot>,
    matched: MatchedLimits,
    slots: &Slots,
    held: &mut Held,
) -> Admission {
    if let Some((index, refusal)) = matched.refused {
        snapshot.limit(index).metrics.denied.inc();
        return Admission::Refused(index, refusal);
    }
    for &index in &matched.shadow_refused {
        snapshot.limit(index).metrics.shadow_denied.inc();
    }
    let MatchedLimits { enforced: limits, mut counters, has_slots, shadow, settles, counts_upload, .. } =
        matched;
    let upload = counts_upload.then(Upload::default);
    if let Some(upload) = &upload {
        held.charges.meter(upload.meter());
    }
    let enforced = async {
        if counters.is_empty() {
            None
        } else if settles {
            Some(check_whole(slots, &snapshot, &limits, &mut counters, has_slots).await)
        } else {
            Some(check_all(slots, &snapshot, &limits, &mut counters, has_slots).await)
        }
    };
    let result = if shadow.is_empty() {
        enforced.await
    } else {
        let shadow = shadow
            .into_iter()
            .map(|(index, counter)| check_shadow(slots, &snapshot, index, counter, upload.as_ref()));
        let (result, of_shadow) = join(enforced, join_all(shadow)).await;
        for (slots, charges) in of_shadow {
            held.slots.extend(slots);
            held.charges.extend(charges);
        }
        result
    };
    let (checked, acquired) = match result {
        None => return Admission::Unlimited,
        Some(Err(error)) => return without_store(&snapshot, &limits, error.as_str()),
        Some(Ok(checked)) => checked,
    };
    held.slots.extend(acquired);
    let failure = checked.failure();
    if let Some(fault) = failure.filter(|_| checked.uncounted.count_ones() as usize == limits.len()) {
        return without_store(&snapshot, &limits, fault);
    }
    let by_local_quota = checked.by_local_quota();
    let Checked { outcome, uncounted } = checked;
    for usage in &outcome.response.key_usages.0 {
        if let Some(&limit) = limits.get(usize::from(usage.counter)) {
            snapshot.limit(limit).metrics.record_key(*usage);
        }
    }
    let status = RateLimitStatus {
        snapshot,
        limits,
        response: outcome.response,
        reservations: outcome.reservations,
        failure,
        uncounted,
    };
    if !status.response.admitted {
        count(&status, by_local_quota);
        return Admission::Denied(status);
    }
    match Delay::of(&status, &counters) {
        Ok(delay) => {
            count(&status, by_local_quota);
            if settles {
                let charged = status.limits.iter().zip(&counters).zip(&status.reservations);
                for ((&limit, counter), &reservation) in charged {
                    held.charges.add(&status.snapshot, limit, counter, reservation, upload.as_ref());
                }
            }
            Admission::Admitted(status, delay)
        }
        Err(full) => {
            status.snapshot.limit(full.limit).metrics.denied.inc();
            Admission::QueueFull(full)
        }
    }
}

/// Checks one limit in shadow mode, and returns the slots that it acquired and the charge that the outcome corrects.
async fn check_shadow(
    slots: &Slots,
    snapshot: &Arc<Snapshot>,
    index: LimitIndex,
    counter: PlannedCounter,
    upload: Option<&Upload>,
) -> (Vec<Slot>, Charges) {
    let mut charges = Charges::default();
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
            let metric = if admitted { &metrics.admitted } else { &metrics.shadow_denied };
            metric.inc();
            if checked.by_local_quota() {
                metrics.by_local_quota(admitted).inc();
            }
            for (counter, &reservation) in counters.iter().zip(&checked.outcome.reservations) {
                charges.add(snapshot, index, counter, reservation, upload);
            }
            (acquired, charges)
        }
        Ok(_) | Err(_) => {
            limit.metrics.fallback_admitted.inc();
            (Vec::new(), charges)
        }
    }
}

/// Adds a decision to the metrics of each limit that made it.
fn count(status: &RateLimitStatus, by_local_quota: bool) {
    let admitted = status.response.admitted;
    for (limit, decisions) in status.counted() {
        let metrics = &status.snapshot.limit(limit).metrics;
        if admitted {
            metrics.admitted.inc();
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
