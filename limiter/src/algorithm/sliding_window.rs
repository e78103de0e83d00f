//! The sliding-window counter.
//!
//! The period is cut into m sub-windows. A record keeps the count of the current one and of the m before it.
//! With [`Bound::Estimate`], used = current + whole previous windows + ceil(oldest * rest / L), where L is
//! the length of a sub-window and rest is what is left of the current one. The last term estimates the
//! requests in the part of the oldest window that the last period still overlaps. With m = 1 this is the
//! counter of two windows that Cloudflare describes ("How we built rate limiting capable of scaling to
//! millions of domains", 2017), here in exact integers. With [`Bound::Guaranteed`] the oldest window counts
//! whole.
//!
//! Never more than N requests pass in one aligned period. In a trailing period an adversary can pass the
//! estimate: it fills the end of a window, and then the end of the m-th window after it. At the last
//! admission of the period, with r milliseconds left of the window, current + whole + ceil(oldest * r / L) <=
//! N. The period holds at most current + whole + oldest, with oldest <= N and r >= 1. So at most
//! N + floor(N * (L - 1) / L) requests pass for every m, and the adversary reaches that number. If L is at
//! least N milliseconds, it is 2N - 1. More sub-windows improve the estimate for ordinary traffic, not this
//! bound.
//!
//! `Guaranteed` never exceeds N in any trailing period, because such a period touches at most m + 1 windows.
//! It admits m / (m + 1) of the rate to a client that sends all the time: choose m well above 1.

use serde::{Deserialize, Serialize};

use super::soft::Soft;
use super::{clock_windows, soft};
use crate::decision::Decision;
use crate::error::RateError;
use crate::number::{MAX_COUNT, OutOfRange, Quota, plain_integer, within};
use crate::record::{Counts, Record};

/// Number of sub-windows of a period, 1 to 60.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct SubWindows(u8);

plain_integer!(SubWindows, new, get);

impl SubWindows {
    /// One sub-window: the counter of two windows.
    pub const ONE: Self = Self(1);

    /// Checks the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        within(value, 1, 60).map(|value| Self(value as u8))
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> u8 {
        self.0
    }
}

/// The weight of the oldest window of a sliding-window counter.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum Bound {
    /// The part that the last period still overlaps.
    #[default]
    Estimate,
    /// All of it, so that no trailing period ever exceeds the number.
    Guaranteed,
}

/// Checks that the sub-windows are whole milliseconds.
pub(crate) fn validate(sub_windows: SubWindows, quota: Quota) -> Result<(), RateError> {
    let (period, sub_windows) = (quota.period.millis(), sub_windows.get());
    if period.is_multiple_of(u64::from(sub_windows)) {
        Ok(())
    } else {
        Err(RateError::Indivisible { period, sub_windows })
    }
}

/// Returns the number of requests in the period that ends at `now`: an estimate or an upper bound.
#[inline]
pub(crate) fn used(bound: Bound, record: &Record, now: u64) -> u64 {
    let (whole, oldest) = match record.tail.split_last() {
        None => (record.current, record.previous),
        Some((oldest, others)) => (record.current + record.previous + others.iter().sum::<u64>(), *oldest),
    };
    match bound {
        Bound::Guaranteed => whole + oldest,
        Bound::Estimate if oldest == 0 => whole,
        Bound::Estimate => {
            let length = record.tag.window_millis();
            whole + ceil_share(oldest, clock_windows::newest_end(record) - now / 1000, length)
        }
    }
}

/// Reports whether the record has room for `cost`.
#[inline]
pub(crate) fn has_room(
    bound: Bound,
    soft: Option<Soft>,
    quota: Quota,
    record: &Record,
    now: u64,
    cost: u64,
) -> bool {
    soft::has_room(soft, quota, record, now, used(bound, record, now).saturating_add(cost))
}

/// Adds `cost` to the current window.
#[inline]
pub(crate) fn charge(
    bound: Bound,
    soft: Option<Soft>,
    quota: Quota,
    record: &mut Record,
    now: u64,
    cost: u64,
) {
    record.current = record.current.saturating_add(cost).min(MAX_COUNT);
    if soft.is_some() && cost > 0 && used(bound, record, now) > quota.requests.get() {
        soft::mark(quota, record, now, clock_windows::newest_end(record));
    }
}

/// Decides about `cost`; `has_room` was decided before a charge.
#[inline]
pub(crate) fn decide(
    bound: Bound,
    soft: Option<Soft>,
    quota: Quota,
    record: &Record,
    now: u64,
    cost: u64,
    has_room: bool,
) -> Decision {
    let falls_to = |spare| falls_to(bound, record, now, spare);
    Decision {
        remaining: quota.requests.get().saturating_sub(used(bound, record, now)),
        reset: reset(record, now),
        retry_after: if has_room {
            None
        } else {
            soft::retry_after(soft, quota, record, now, cost, falls_to)
        },
        ..Decision::new(quota, has_room)
    }
}

/// Returns the microseconds until all counts have expired.
fn reset(record: &Record, now: u64) -> u64 {
    let kept = record.tag.previous_windows();
    let counts = Counts(record);
    match (0..=kept).find(|&index| counts.get(index) > 0) {
        Some(index) => (record.window + kept + 1 - index) * record.tag.window_millis() * 1000 - now,
        None => 0,
    }
}

/// Returns the instant, in milliseconds, from which at most `spare` requests are used.
fn falls_to(bound: Bound, record: &Record, now: u64, spare: u64) -> u64 {
    let (kept, length) = (record.tag.previous_windows(), record.tag.window_millis());
    let counts = Counts(record);
    // The sum of the windows that count whole while window + ahead is the current one: all but the oldest.
    let mut whole: u64 = (0..kept).map(|index| counts.get(index)).sum();
    for ahead in 0..=kept {
        let begins = (record.window + ahead) * length;
        let oldest = counts.get(kept - ahead);
        if whole <= spare {
            let share = spare - whole;
            let at = if oldest <= share {
                begins
            } else {
                match bound {
                    Bound::Estimate => begins + length - floor_share(share, length, oldest),
                    Bound::Guaranteed => begins + length,
                }
            };
            return at.max(now / 1000);
        }
        if ahead < kept {
            whole -= counts.get(kept - ahead - 1);
        }
    }
    (record.window + kept + 1) * length
}

/// Returns the arguments for the script: 1 if guaranteed, the soft ceiling, the duration of the extra.
pub(crate) fn script_arguments(bound: Bound, soft: Option<Soft>, quota: Quota) -> [u64; 5] {
    soft::script_arguments(soft, quota, u64::from(bound == Bound::Guaranteed))
}

/// Returns ceil(count * part / whole), for part <= whole. The result is at most `count`.
#[inline]
fn ceil_share(count: u64, part: u64, whole: u64) -> u64 {
    match count.checked_mul(part) {
        Some(product) => product.div_ceil(whole),
        None => (u128::from(count) * u128::from(part)).div_ceil(u128::from(whole)) as u64,
    }
}

/// Returns floor(count * period / whole), for count < whole. The result is below `period`.
fn floor_share(count: u64, period: u64, whole: u64) -> u64 {
    match count.checked_mul(period) {
        Some(product) => product / whole,
        None => (u128::from(count) * u128::from(period) / u128::from(whole)) as u64,
    }
}

#[cfg(test)]
mod tests;
