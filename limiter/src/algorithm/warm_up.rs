//! The token bucket that warms up: `SmoothWarmingUp` of Guava's `RateLimiter` (described in the long comment
//! at the top of `SmoothRateLimiter.java`).
//!
//! Unused time is stored as permits, up to a maximum. A cold limiter has stored the maximum, and those
//! permits are expensive: the first costs `coldFactor * T`, and the price falls to `T` = period / requests at
//! half of the store. A request never waits for itself: its cost delays the *next* one.
//!
//! With W the warm-up period: threshold = W / (2 T), maximum = threshold + 2 W / (T + coldFactor T), slope =
//! (coldFactor T - T) / (maximum - threshold), and one permit is stored each W / maximum. All of this is
//! computed in doubles, in the same order of operations as in the Redis script. Only instants are whole
//! numbers, in units of 1/256 microsecond: Guava cuts each wait to whole microseconds, which would make ten
//! million a second unlimited.
//!
//! In a [`Record`] `window` holds the millisecond from which the next request is admitted, `previous` the
//! units within it, and `current` the stored permits as the time, in units, that storing them took.

mod curve;

use curve::Curve;
use serde::{Deserialize, Serialize};

use super::definition::{Checked, Definition};
use crate::decision::Decision;
use crate::duration::Millis;
use crate::error::RateError;
use crate::number::{MAX_COUNT, MAX_PERIOD_MS, OutOfRange, within};
use crate::quota::Quota;
use crate::record::{Kind, Record, Tag};

/// Units in a microsecond.
const UNITS: u64 = 256;
/// The longest warm-up period in milliseconds: 1 h.
pub const MAX_WARM_UP_MS: u64 = 3_600_000;

/// The parameters of a warm-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", try_from = "WarmUpFields")]
pub struct WarmUp {
    #[serde(rename = "periodMillis")]
    millis: u64,
    cold_factor: u64,
}

/// The fields of a warm-up before they are checked.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct WarmUpFields {
    period_millis: u64,
    cold_factor: u64,
}

impl TryFrom<WarmUpFields> for WarmUp {
    type Error = OutOfRange;

    fn try_from(fields: WarmUpFields) -> Result<Self, OutOfRange> {
        Self::new(fields.period_millis, fields.cold_factor)
    }
}

impl WarmUp {
    /// Checks the ranges: a warm-up period of 1 to [`MAX_WARM_UP_MS`] milliseconds, and a cold factor of 2 to
    /// 100 (Guava: 3).
    pub fn new(millis: u64, cold_factor: u64) -> Result<Self, OutOfRange> {
        Ok(Self { millis: within(millis, 1, MAX_WARM_UP_MS)?, cold_factor: within(cold_factor, 2, 100)? })
    }

    /// Returns the warm-up period in milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.millis
    }

    /// Returns the warm-up period in microseconds.
    #[must_use]
    pub fn micros(self) -> u64 {
        self.millis * 1000
    }

    /// Returns how many times the cost of a warm request a cold one costs.
    #[must_use]
    pub fn cold_factor(self) -> u64 {
        self.cold_factor
    }
}

impl Definition for WarmUp {
    /// Checks that a cold limiter admits one period's requests within the longest period.
    fn validate(self, quota: Quota) -> Result<(), RateError> {
        let (period, factor) = (quota.period.millis(), self.cold_factor);
        if factor * period > MAX_PERIOD_MS { Err(RateError::SlowWarmUp { period, factor }) } else { Ok(()) }
    }

    #[inline]
    fn tag(self, quota: Quota) -> Tag {
        Tag::new(Kind::WarmUp, 0, quota.period.millis())
    }

    /// Returns the record of a limiter that was never used: it is cold.
    fn fresh(self, quota: Quota, now: u64) -> Record {
        let mut record = Record::empty(self.tag(quota), now);
        set_next_free(&mut record, now * UNITS);
        record.current = self.micros() * UNITS;
        record
    }

    /// Stores the time that was not used since the last request (Guava: `resync`).
    fn roll(self, quota: Quota, mut stored: Record, now: u64) -> (Record, u64) {
        let units = now * UNITS;
        // The most that one request can delay the next, if it costs all requests of a period.
        let latest = units + quota.period.micros() * self.cold_factor * UNITS;
        let free = next_free(&stored);
        let full = self.micros() * UNITS;
        stored.current = stored.current.min(full);
        if free > latest {
            set_next_free(&mut stored, latest);
        } else if free < units {
            stored.current = full.min(stored.current.saturating_add(units - free));
            set_next_free(&mut stored, units);
        }
        (stored, now)
    }

    /// Returns 1 if the next request would have to wait, otherwise 0.
    fn used(self, _quota: Quota, record: &Record, now: u64) -> u64 {
        u64::from(wait(record, now) > 0)
    }

    fn has_room(self, quota: Quota, record: &Record, now: u64, cost: u64) -> bool {
        cost <= quota.requests.get() && wait(record, now) == 0
    }

    /// Takes `cost` permits, which delays the next request.
    fn charge(self, quota: Quota, record: &mut Record, _now: u64, cost: u64) {
        if cost == 0 || quota.requests.get() == 0 {
            return;
        }
        let interval = quota.period.micros() as f64 / quota.requests.get() as f64;
        let curve = Curve::new(interval, self.micros() as f64, self.cold_factor as f64);
        let (stored, cost) = (record.current as f64 / UNITS as f64 / curve.cool_down, cost as f64);
        let wait = curve.wait(stored, cost);
        let left = (stored - stored.min(cost)) * curve.cool_down * UNITS as f64;
        record.current = left.floor() as u64;
        let free = next_free(record).saturating_add((wait * UNITS as f64).floor() as u64);
        set_next_free(record, free);
    }

    /// Moves the next request by the cost of `delta` warm requests. Stored permits stay.
    fn settle(self, quota: Quota, record: &mut Record, _now: u64, _charged: u64, delta: i64) {
        let by = warm_units(quota, delta.unsigned_abs());
        let free = next_free(record);
        set_next_free(record, if delta < 0 { free.saturating_sub(by) } else { free.saturating_add(by) });
    }

    fn is_mergeable(self) -> bool {
        false
    }

    fn decide(self, quota: Quota, record: &Record, checked: Checked) -> Decision {
        let Checked { now, cost, has_room, .. } = checked;
        let (requests, wait) = (quota.requests.get(), wait(record, now));
        Decision {
            remaining: u64::from(requests > 0 && wait == 0),
            reset: wait,
            retry_after: (!has_room && cost <= requests).then_some(wait),
            ..Decision::new(quota, has_room)
        }
    }

    /// Returns the warm-up period in microseconds, the cold factor, and the units by which a settlement of
    /// `cost` moves the next request.
    fn script_arguments(self, quota: Quota, _key: u128, cost: u64) -> [u64; 5] {
        [self.micros(), self.cold_factor, warm_units(quota, cost), 0, 0]
    }

    fn description(self, quota: Quota) -> String {
        format!("admits {quota}, and fewer after an idle time")
    }

    fn notes(self, _quota: Quota) -> Vec<String> {
        vec![format!("tokenBucket warmUp {} from 1/{}", Millis(self.millis), self.cold_factor)]
    }
}

fn next_free(record: &Record) -> u64 {
    record.window.saturating_mul(1000 * UNITS).saturating_add(record.previous)
}

fn set_next_free(record: &mut Record, units: u64) {
    (record.window, record.previous) = (units / (1000 * UNITS), units % (1000 * UNITS));
}

/// Returns the microseconds until the next request is admitted.
fn wait(record: &Record, now: u64) -> u64 {
    next_free(record).saturating_sub(now * UNITS).div_ceil(UNITS)
}

/// Returns the time of `cost` warm requests, in units, limited to what a double holds exactly.
fn warm_units(quota: Quota, cost: u64) -> u64 {
    let interval = quota.period.micros() as f64 / quota.requests.get().max(1) as f64;
    let units = interval * cost.min(MAX_COUNT) as f64 * UNITS as f64;
    (units.floor() as u64).min(1 << 51)
}

#[cfg(test)]
mod published;
#[cfg(test)]
mod tests;
