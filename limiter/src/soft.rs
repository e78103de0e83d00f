//! Soft limits: for some time a rate lets some more pass than its number, so that a short peak is not cut off.
//!
//! The extra begins with the first request that is admitted above N and lasts `for`; after that N is hard again. It
//! re-arms a whole period after the end of the slot in which the last request was admitted above N. Both instants stand
//! in the record, as [`crate::record::Over`].

use crate::{Rate, Record, fixed_window};

/// Whether the extra can be used at an instant (milliseconds).
fn open(rate: &Rate, record: &Record, millis: u64) -> bool {
    let Some(soft) = rate.soft else { return false };
    record.over.since == 0
        || millis < record.over.since + soft.millis()
        || millis >= record.over.last + rate.period.millis()
}

/// Whether the extra has room for a use of `after`.
pub(crate) fn has_room(rate: &Rate, record: &Record, now: u64, after: u64) -> bool {
    after <= rate.ceiling() && open(rate, record, now / 1000)
}

/// Notes that a charge has gone above the number, if it has.
pub(crate) fn mark(rate: &Rate, record: &mut Record, now: u64) {
    if rate.used(record, now) > rate.requests.get() {
        let millis = now / 1000;
        let over = record.over;
        if over.since == 0 || over.since > millis || millis >= over.last + rate.period.millis() {
            record.over.since = millis;
        }
        record.over.last = fixed_window::ends(record);
    }
}

/// Microseconds until a window, soft or hard, has room for `cost`.
pub(crate) fn retry_after(rate: &Rate, record: &Record, now: u64, cost: u64) -> Option<u64> {
    let falls = |to: u64| to.checked_sub(cost).map(|spare| rate.falls_to(record, now, spare));
    let hard = falls(rate.requests.get());
    let extra = rate
        .soft
        .and_then(|_| falls(rate.ceiling()))
        .map(|at| if open(rate, record, at) { at } else { at.max(record.over.last + rate.period.millis()) });
    let at = hard.into_iter().chain(extra).min()?;
    Some((at * 1000).saturating_sub(now))
}
