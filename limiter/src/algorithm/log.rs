//! The sliding-window log: the instants of the newest N admitted requests. A request is admitted if fewer
//! than N lie in the period that ends now.
//!
//! The log is exact in every trailing period, in whole milliseconds, and takes 6 bytes a request: so N is at
//! most [`MAX_REQUESTS`]. A request of cost c is c instants. After the "sliding log" of the Kong and Figma
//! articles (2017), which use a sorted set.
//!
//! `minInterval` also requires that much time between two admitted requests. `countDenied` records denied
//! requests too, so that a client that keeps sending stays denied.
//!
//! In a [`Record`] `tail` holds the instants in milliseconds, newest first, and `window` the newest, or 0.

use super::view::RecordView;
use crate::decision::Decision;
use crate::error::RateError;
use crate::number::Quota;
use crate::record::{MAX_INSTANTS, Record};

/// The largest number of requests of a log.
const MAX_REQUESTS: u64 = MAX_INSTANTS as u64;

/// Checks the number of requests, and that the minimum interval (milliseconds) fits in the period.
pub(crate) fn validate(min_interval: u64, quota: Quota) -> Result<(), RateError> {
    let (requests, period) = (quota.requests.get(), quota.period.millis());
    if requests > MAX_REQUESTS {
        Err(RateError::LongLog(requests))
    } else if min_interval > period {
        Err(RateError::LongInterval { interval: min_interval, period })
    } else {
        Ok(())
    }
}

/// Returns the record at `now` without expired instants, and the instant that counts.
pub(crate) fn roll(quota: Quota, mut record: Record, now: u64) -> (Record, u64) {
    let (millis, period) = (now / 1000, quota.period.millis());
    let mut at = now;
    if record.window > millis + period {
        record.tail.fill(millis);
    } else if record.window > millis {
        at = record.window * 1000;
    }
    let kept = record.tail.partition_point(|instant| instant + period > at / 1000);
    record.tail.truncate(kept);
    set_newest(&mut record);
    (record, at)
}

fn set_newest(record: &mut Record) {
    record.window = record.tail.first().copied().unwrap_or(0);
}

/// Returns the number of requests in the period.
#[inline]
pub(crate) fn used(record: &Record) -> u64 {
    record.tail.len() as u64
}

/// Reports whether the record has room for `cost`.
#[inline]
pub(crate) fn has_room(min_interval: u64, quota: Quota, record: &Record, now: u64, cost: u64) -> bool {
    let fits = used(record).saturating_add(cost) <= quota.requests.get();
    fits && (min_interval == 0 || record.tail.is_empty() || record.window + min_interval <= now / 1000)
}

/// Adds `cost` instants at `now` and forgets all but the newest N.
pub(crate) fn charge(quota: Quota, record: &mut Record, now: u64, cost: u64) {
    let requests = quota.requests.get();
    let cost = cost.min(requests) as usize;
    record.tail.splice(0..0, std::iter::repeat_n(now / 1000, cost));
    record.tail.truncate(requests as usize);
    set_newest(record);
}

/// Adds or removes requests at the instant `charged`.
pub(crate) fn settle(quota: Quota, record: &mut Record, charged: u64, delta: i64) {
    let (millis, requests) = (charged / 1000, quota.requests.get());
    let from = record.tail.partition_point(|&instant| instant > millis);
    if delta < 0 {
        let to = record.tail.partition_point(|&instant| instant >= millis);
        let removed = (to - from).min(delta.unsigned_abs() as usize);
        record.tail.drain(from..from + removed);
    } else {
        let added = delta.unsigned_abs().min(requests) as usize;
        record.tail.splice(from..from, std::iter::repeat_n(millis, added));
        record.tail.truncate(requests as usize);
    }
    set_newest(record);
}

/// Returns the summary that a decision about `cost` needs.
#[inline]
pub(crate) fn view(quota: Quota, record: &Record, cost: u64) -> RecordView {
    let leaves =
        quota.requests.get().checked_sub(cost.max(1)).and_then(|kept| record.tail.get(kept as usize));
    RecordView { newest: record.window, used: used(record), leaves: leaves.copied().unwrap_or(0) }
}

/// Reports whether the log that the view summarizes has room for `cost`.
pub(crate) fn view_has_room(min_interval: u64, quota: Quota, view: &RecordView, now: u64, cost: u64) -> bool {
    let is_too_soon = min_interval > 0 && view.used > 0 && view.newest + min_interval > now / 1000;
    view.used.saturating_add(cost) <= quota.requests.get() && !is_too_soon
}

/// Decides about `cost` from a view; `has_room` was decided before a charge.
#[inline]
pub(crate) fn decide(
    min_interval: u64,
    quota: Quota,
    view: &RecordView,
    now: u64,
    cost: u64,
    has_room: bool,
) -> Decision {
    let (requests, period) = (quota.requests.get(), quota.period.millis());
    let retry_after = || {
        let room = if view.leaves == 0 { 0 } else { view.leaves + period };
        let pause = if min_interval == 0 || view.used == 0 { 0 } else { view.newest + min_interval };
        (room.max(pause) * 1000).saturating_sub(now)
    };
    Decision {
        remaining: requests.saturating_sub(view.used),
        reset: if view.used == 0 { 0 } else { ((view.newest + period) * 1000).saturating_sub(now) },
        retry_after: (!has_room && cost <= requests).then(retry_after),
        ..Decision::new(quota, has_room)
    }
}

/// Returns the arguments for the script: the minimum interval in milliseconds, and 1 if denials count.
pub(crate) fn script_arguments(min_interval: u64, count_denied: bool) -> [u64; 5] {
    [min_interval, u64::from(count_denied), 0, 0, 0]
}

/// Returns the instant, in milliseconds, from which the record no longer changes a decision.
pub(crate) fn expires_at(record: &Record) -> u64 {
    record.window.saturating_add(record.tag.period_millis())
}

/// Moves all instants of a log that is more than a period ahead back to `now`.
pub(crate) fn carry_over(mut record: Record, now: u64) -> Record {
    let millis = now / 1000;
    if record.window > millis + record.tag.period_millis() {
        record.window = millis;
        record.tail.fill(millis);
    }
    record
}

#[cfg(test)]
mod tests;
