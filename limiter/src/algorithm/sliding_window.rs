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

use super::clock_windows;
use super::definition::{Checked, Definition, Windows};
use super::shape::{PreviousPart, Shape};
use crate::decision::Decision;
use crate::error::RateError;
use crate::number::{MAX_COUNT, ranged};
use crate::quota::Quota;
use crate::record::{Counts, Kind, Record, Tag};

ranged! {
    /// Number of sub-windows of a period, 1 to 60.
    SubWindows(u8), new(1..=60),
    /// Returns the number.
    get
}

impl SubWindows {
    /// One sub-window: the counter of two windows.
    pub const ONE: Self = Self(1);
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

/// The sliding-window counter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlidingWindow {
    pub(crate) sub_windows: SubWindows,
    pub(crate) bound: Bound,
}

impl Definition for SlidingWindow {
    fn validate(self, quota: Quota) -> Result<(), RateError> {
        let (period, sub_windows) = (quota.period.millis(), self.sub_windows.get());
        if period.is_multiple_of(u64::from(sub_windows)) {
            Ok(())
        } else {
            Err(RateError::Indivisible { period, sub_windows })
        }
    }

    fn can_be_soft(self) -> bool {
        true
    }

    fn can_count_denied(self) -> bool {
        true
    }

    fn windows(self) -> Option<Windows> {
        Some(Windows::Any)
    }

    #[inline]
    fn tag(self, quota: Quota) -> Tag {
        Tag::new(Kind::Sliding, u64::from(self.sub_windows.get()), quota.period.millis())
    }

    #[inline]
    fn roll(self, _quota: Quota, stored: Record, now: u64) -> (Record, u64) {
        clock_windows::roll(stored, now)
    }

    #[inline]
    fn used(self, _quota: Quota, record: &Record, now: u64) -> u64 {
        let (whole, oldest) = match record.tail.split_last() {
            None => (record.current, record.previous),
            Some((oldest, others)) => {
                (record.current + record.previous + others.iter().sum::<u64>(), *oldest)
            }
        };
        match self.bound {
            Bound::Guaranteed => whole + oldest,
            Bound::Estimate if oldest == 0 => whole,
            Bound::Estimate => {
                let length = record.tag.window_millis();
                whole + ceil_share(oldest, clock_windows::newest_end(record) - now / 1000, length)
            }
        }
    }

    #[inline]
    fn has_room(self, quota: Quota, record: &Record, now: u64, cost: u64) -> bool {
        quota.has_room(record, now, self.used(quota, record, now).saturating_add(cost))
    }

    #[inline]
    fn charge(self, quota: Quota, record: &mut Record, now: u64, cost: u64) {
        record.current = record.current.saturating_add(cost).min(MAX_COUNT);
        if quota.soft.is_some() && cost > 0 && self.used(quota, record, now) > quota.requests.get() {
            quota.mark_overrun(record, now, clock_windows::newest_end(record));
        }
    }

    fn settle(self, _quota: Quota, record: &mut Record, _now: u64, charged: u64, delta: i64) {
        clock_windows::settle(record, charged, delta);
    }

    #[inline]
    fn decide(self, quota: Quota, record: &Record, checked: Checked) -> Decision {
        let Checked { now, cost, has_room, .. } = checked;
        let retry_after = || quota.retry_after(record, now, cost, |spare| self.falls_to(record, now, spare));
        Decision {
            remaining: quota.requests.get().saturating_sub(self.used(quota, record, now)),
            reset: reset(record, now),
            retry_after: if has_room { None } else { retry_after() },
            ..Decision::new(quota, has_room)
        }
    }

    #[inline]
    fn is_plain(self) -> bool {
        self.sub_windows == SubWindows::ONE && self.bound == Bound::Estimate
    }

    /// Returns 1 if guaranteed, and what all windows need.
    fn script_arguments(self, quota: Quota, _key: u128, _cost: u64) -> [u64; 5] {
        quota.script_arguments(u64::from(self.bound == Bound::Guaranteed))
    }

    fn script_weight(self, _quota: Quota) -> usize {
        3 + usize::from(self.sub_windows.get()) / 10
    }

    fn shape(self) -> Option<Shape> {
        let part = match self.bound {
            Bound::Estimate => PreviousPart::Overlap,
            Bound::Guaranteed => PreviousPart::All,
        };
        (self.sub_windows == SubWindows::ONE).then_some(Shape::Windows(part))
    }

    /// Leases to the end of the sub-window. Aligned periods are exact; the estimate never knew where in a
    /// sub-window its requests fell.
    fn longest_lease(self, quota: Quota) -> Option<u64> {
        Some(self.window_micros(quota))
    }

    fn left_of_window(self, quota: Quota, now: u64, _decision: &Decision) -> Option<u64> {
        Some(self.window_micros(quota) - now % self.window_micros(quota))
    }

    /// The oldest window holds at most the whole number. An estimate lets it slide out within the window's length, and a guarantee
    /// drops it whole with the window.
    fn least_still_used(self, quota: Quota, used: u64, at: u64, now: u64) -> u64 {
        let window = self.window_micros(quota);
        match self.bound {
            Bound::Estimate => quota.least_left(used, now.saturating_sub(at), window),
            Bound::Guaranteed if at / window == now / window => used,
            Bound::Guaranteed => 0,
        }
    }

    fn notes(self, _quota: Quota) -> Vec<String> {
        match self.bound {
            Bound::Estimate => vec![],
            Bound::Guaranteed => vec!["Guaranteed".into()],
        }
    }
}

impl SlidingWindow {
    /// Returns the length of a sub-window in microseconds.
    fn window_micros(self, quota: Quota) -> u64 {
        self.tag(quota).window_millis() * 1000
    }

    /// Returns the instant, in milliseconds, from which at most `spare` requests are used.
    fn falls_to(self, record: &Record, now: u64, spare: u64) -> u64 {
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
                    match self.bound {
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
