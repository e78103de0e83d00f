//! The token bucket that has to warm up: `SmoothWarmingUp` of Guava's `RateLimiter` (see the long comment at the head
//! of `SmoothRateLimiter.java`). What was not used is stored as permits, up to a maximum; a cold limiter has all of
//! them, and they are dear: from `coldFactor * T` each down to `T` = period / requests at half of the store. A request
//! never waits for itself: its cost delays the *next* one.
//!
//! With W the warm-up period: threshold = W / (2 T), maximum = threshold + 2 W / (T + coldFactor T), slope =
//! (coldFactor T - T) / (maximum - threshold), and permits come back one each W / maximum. Here all of it in doubles, in the
//! order of operations that the Redis script repeats, but for the instants, which are whole units of 1/256 microsecond:
//! Guava cuts the wait to whole microseconds, and so ten million a second would become unlimited.
//!
//! In a [`Record`]: `slot` is the millisecond from which on the next request is admitted, `previous` the units within it,
//! `current` the stored permits as the time that storing them took, in units.

use crate::rate::within;
use crate::{OutOfRange, Rate, Record};

/// Units in a microsecond.
pub(crate) const UNITS: u64 = 256;
/// The longest warm-up period in milliseconds: 1 h.
pub const MAX_WARM_UP_MS: u64 = 3_600_000;

/// How to warm up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct WarmUp {
    millis: u64,
    cold_factor: u64,
}

impl WarmUp {
    /// For so long, 1 to [`MAX_WARM_UP_MS`] milliseconds; a cold request costs so many times a warm one (2 to 100; Guava: 3).
    pub fn new(millis: u64, cold_factor: u64) -> Result<Self, OutOfRange> {
        Ok(Self { millis: within(millis, 1, MAX_WARM_UP_MS)?, cold_factor: within(cold_factor, 2, 100)? })
    }

    /// The warm-up period in microseconds.
    #[must_use]
    pub fn micros(self) -> u64 {
        self.millis * 1000
    }

    /// How many times dearer a cold request is.
    #[must_use]
    pub fn cold_factor(self) -> u64 {
        self.cold_factor
    }
}

/// The published numbers, in microseconds and permits.
#[derive(Debug, Clone, Copy)]
struct Curve {
    interval: f64,
    threshold: f64,
    slope: f64,
    cool_down: f64,
}

impl Curve {
    fn of(rate: &Rate, warm_up: WarmUp) -> Self {
        let interval = rate.period.micros() as f64 / rate.requests.get() as f64;
        let cold = interval * warm_up.cold_factor as f64;
        let period = warm_up.micros() as f64;
        let threshold = 0.5 * period / interval;
        let maximum = threshold + 2.0 * period / (interval + cold);
        let slope = (cold - interval) / (maximum - threshold);
        Self { interval, threshold, slope, cool_down: period / maximum }
    }

    /// `permitsToTime`.
    fn time(&self, permits: f64) -> f64 {
        self.interval + permits * self.slope
    }

    /// `storedPermitsToWaitTime`, and the time of the fresh permits: what a request of `cost` delays the next one.
    fn wait(&self, stored: f64, cost: f64) -> f64 {
        let mut spend = stored.min(cost);
        let fresh = cost - spend;
        let mut wait = 0.0;
        let above = stored - self.threshold;
        if above > 0.0 {
            let taken = above.min(spend);
            wait = taken * (self.time(above) + self.time(above - taken)) / 2.0;
            spend -= taken;
        }
        wait + self.interval * spend + self.interval * fresh
    }
}

fn next(record: &Record) -> u64 {
    record.slot.saturating_mul(1000 * UNITS).saturating_add(record.previous)
}

fn set_next(record: &mut Record, units: u64) {
    (record.slot, record.previous) = (units / (1000 * UNITS), units % (1000 * UNITS));
}

/// A limiter that was never used: cold.
pub(crate) fn fresh(rate: &Rate, warm_up: WarmUp, now: u64) -> Record {
    let mut record = Record::empty(rate.tag(), now);
    set_next(&mut record, now * UNITS);
    record.current = warm_up.micros() * UNITS;
    record
}

/// `resync`: what was not used since the last request is stored.
pub(crate) fn roll(rate: &Rate, mut record: Record, now: u64) -> Record {
    let crate::Algorithm::WarmUp(warm_up) = rate.algorithm else { return record };
    let now = now * UNITS;
    // The most that one request can delay the next, if it takes all that a period gives.
    let latest = now + rate.period.micros() * warm_up.cold_factor * UNITS;
    let free = next(&record);
    let full = warm_up.micros() * UNITS;
    record.current = record.current.min(full);
    if free > latest {
        set_next(&mut record, latest);
    } else if free < now {
        record.current = full.min(record.current.saturating_add(now - free));
        set_next(&mut record, now);
    }
    record
}

/// Microseconds until the next request is admitted.
pub(crate) fn wait(record: &Record, now: u64) -> u64 {
    next(record).saturating_sub(now * UNITS).div_ceil(UNITS)
}

/// Takes `cost`, which delays whoever comes next.
pub(crate) fn charge(rate: &Rate, warm_up: WarmUp, record: &mut Record, _now: u64, cost: u64) {
    if cost == 0 || rate.requests.get() == 0 {
        return;
    }
    let curve = Curve::of(rate, warm_up);
    let (stored, cost) = (record.current as f64 / UNITS as f64 / curve.cool_down, cost as f64);
    let wait = curve.wait(stored, cost);
    let left = (stored - stored.min(cost)) * curve.cool_down * UNITS as f64;
    record.current = left.floor() as u64;
    let free = next(record) + (wait * UNITS as f64).floor() as u64;
    set_next(record, free);
}

/// What so many warm requests take, in units; never so much that a double would not be exact.
pub(crate) fn units(rate: &Rate, cost: u64) -> u64 {
    let interval = rate.period.micros() as f64 / rate.requests.get().max(1) as f64;
    let units = interval * cost.min(crate::MAX_COUNT) as f64 * UNITS as f64;
    (units.floor() as u64).min(1 << 51)
}

/// Moves the next request by what a warm one costs; what was stored stays.
pub(crate) fn settle(rate: &Rate, record: &mut Record, delta: i64) {
    let by = units(rate, delta.unsigned_abs());
    let free = next(record);
    set_next(record, if delta < 0 { free.saturating_sub(by) } else { free.saturating_add(by) });
}
