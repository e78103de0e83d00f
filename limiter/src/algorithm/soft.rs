//! Soft limits: for some time a rate admits more requests than its number, so that a short peak is not cut
//! off.
//!
//! The extra begins with the first request that is admitted above N and lasts for the configured time; then N
//! is hard again. The extra is available again one period after the end of the window in which the last
//! request was admitted above N. The record keeps both times in its [`Overrun`](crate::Overrun).

use serde::{Deserialize, Serialize};

use crate::number::{MAX_COUNT, MAX_PERIOD_MS, OutOfRange, Quota, within};
use crate::record::Record;

/// An extra above the number of requests, for a limited time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "SoftFields")]
pub struct Soft {
    over_percent: u16,
    #[serde(rename = "forMillis")]
    millis: u64,
}

/// The fields of a soft extra before they are checked.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct SoftFields {
    over_percent: u64,
    for_millis: u64,
}

impl TryFrom<SoftFields> for Soft {
    type Error = OutOfRange;

    fn try_from(fields: SoftFields) -> Result<Self, OutOfRange> {
        Self::new(fields.over_percent, fields.for_millis)
    }
}

impl Soft {
    /// Checks the ranges: the extra is 1 to 1000 percent of the number of requests, and its duration 1 to
    /// [`MAX_PERIOD_MS`] milliseconds.
    pub fn new(over_percent: u64, for_millis: u64) -> Result<Self, OutOfRange> {
        let over_percent = within(over_percent, 1, 1000)? as u16;
        Ok(Self { over_percent, millis: within(for_millis, 1, MAX_PERIOD_MS)? })
    }

    /// Returns the extra in percent of the number of requests.
    #[must_use]
    pub fn over_percent(self) -> u16 {
        self.over_percent
    }

    /// Returns the duration of the extra in milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.millis
    }

    /// Reports whether the extra is available at `millis`.
    fn is_open(self, quota: Quota, record: &Record, millis: u64) -> bool {
        record.overrun.since == 0
            || millis < record.overrun.since + self.millis
            || millis >= record.overrun.last + quota.period.millis()
    }
}

/// Returns the most requests that may be admitted per period: the number, plus the extra.
pub(crate) fn ceiling(soft: Option<Soft>, quota: Quota) -> u64 {
    let requests = quota.requests.get();
    let extra = soft.map_or(0, |soft| requests * u64::from(soft.over_percent) / 100);
    (requests + extra).min(MAX_COUNT)
}

/// Reports whether the usage `after` a charge is within the number or the extra.
#[inline]
pub(crate) fn has_room(soft: Option<Soft>, quota: Quota, record: &Record, now: u64, after: u64) -> bool {
    let is_within_extra =
        |extra: Soft| after <= ceiling(soft, quota) && extra.is_open(quota, record, now / 1000);
    after <= quota.requests.get() || soft.is_some_and(is_within_extra)
}

/// Records a charge that took the usage above the number, in the window that ends at `window_end`
/// (milliseconds).
pub(crate) fn mark(quota: Quota, record: &mut Record, now: u64, window_end: u64) {
    let millis = now / 1000;
    let over = record.overrun;
    if over.since == 0 || over.since > millis || millis >= over.last + quota.period.millis() {
        record.overrun.since = millis;
    }
    record.overrun.last = window_end;
}

/// Returns the microseconds until a window has room for `cost`. `falls_to` returns the instant, in
/// milliseconds, from which at most that many requests are used.
pub(crate) fn retry_after(
    soft: Option<Soft>,
    quota: Quota,
    record: &Record,
    now: u64,
    cost: u64,
    falls_to: impl Fn(u64) -> u64,
) -> Option<u64> {
    let has_room_at = |limit: u64| limit.checked_sub(cost).map(&falls_to);
    let hard = has_room_at(quota.requests.get());
    let extra = soft.and_then(|extra| {
        let at = has_room_at(ceiling(soft, quota))?;
        let reopens_at = record.overrun.last + quota.period.millis();
        Some(if extra.is_open(quota, record, at) { at } else { at.max(reopens_at) })
    });
    let at = hard.into_iter().chain(extra).min()?;
    Some((at * 1000).saturating_sub(now))
}

/// Returns the arguments of windows for the script: `first`, the ceiling, and the duration of the extra in
/// milliseconds or 0.
pub(crate) fn script_arguments(soft: Option<Soft>, quota: Quota, first: u64) -> [u64; 5] {
    [first, ceiling(soft, quota), soft.map_or(0, Soft::millis), 0, 0]
}

#[cfg(test)]
mod tests;
