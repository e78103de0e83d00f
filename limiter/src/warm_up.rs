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
//! In a [`Record`]: `window` is the millisecond from which on the next request is admitted, `previous` the units within it,
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
    record.window.saturating_mul(1000 * UNITS).saturating_add(record.previous)
}

fn set_next(record: &mut Record, units: u64) {
    (record.window, record.previous) = (units / (1000 * UNITS), units % (1000 * UNITS));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Algorithm;
    use crate::sliding_window_counter::tests::Numbers;
    use crate::testing::{check, rate};

    const START: u64 = 1_126_000_020_000_000;

    /// `SmoothWarmingUp` as it is published, in microseconds: from the formulas of its documentation, apart from what is
    /// above.
    struct Published {
        interval: f64,
        threshold: f64,
        maximum: f64,
        slope: f64,
        warm_up: f64,
        stored: f64,
        next_free: f64,
        /// Waits are cut to whole microseconds, as Guava's casts to `long` do.
        whole: bool,
    }

    impl Published {
        fn cold(interval: f64, warm_up: f64, cold_factor: f64, now: f64, whole: bool) -> Self {
            let cold = interval * cold_factor;
            let threshold = 0.5 * warm_up / interval;
            let maximum = threshold + 2.0 * warm_up / (interval + cold);
            let slope = (cold - interval) / (maximum - threshold);
            Self { interval, threshold, maximum, slope, warm_up, stored: maximum, next_free: now, whole }
        }

        fn cut(&self, micros: f64) -> f64 {
            if self.whole { micros.trunc() } else { micros }
        }

        /// The area under the line between `stored - taken` and `stored` permits.
        fn stored_wait(&self, mut taken: f64) -> f64 {
            let above = self.stored - self.threshold;
            let mut micros = 0.0;
            if above > 0.0 {
                let dear = above.min(taken);
                let height = |permits: f64| self.interval + permits * self.slope;
                micros = self.cut(dear * (height(above) + height(above - dear)) / 2.0);
                taken -= dear;
            }
            micros + self.cut(self.interval * taken)
        }

        /// Takes so many; returns when they can be had, which the cost of those before has decided.
        fn reserve(&mut self, permits: f64, now: f64) -> f64 {
            if now > self.next_free {
                let cool_down = self.warm_up / self.maximum;
                self.stored = self.maximum.min(self.stored + (now - self.next_free) / cool_down);
                self.next_free = now;
            }
            let available = self.next_free;
            let spent = permits.min(self.stored);
            self.next_free += self.stored_wait(spent) + self.cut((permits - spent) * self.interval);
            self.stored -= spent;
            available
        }
    }

    fn limiter(requests: u64, period: u64, warm_up: u64, factor: u64) -> Rate {
        rate(requests, period, Algorithm::WarmUp(WarmUp::new(warm_up, factor).unwrap()))
    }

    /// As Guava's `acquire`: asks for each cost as soon as the one before was admitted; what each had to wait.
    fn acquire(rate: &Rate, stored: &mut Option<Record>, now: &mut u64, costs: &[u64]) -> Vec<u64> {
        let mut waits = vec![];
        for &cost in costs {
            let (mut record, decision) = check(rate, stored.take(), *now, cost);
            let wait = decision.retry_after.unwrap_or(0);
            if wait > 0 {
                *now += wait;
                let again;
                (record, again) = check(rate, Some(record), *now, cost);
                assert!(again.admitted);
            }
            *stored = Some(record);
            waits.push(wait);
        }
        waits
    }

    fn hundredths(waits: &[u64]) -> Vec<u64> {
        waits.iter().map(|wait| (wait + 5000) / 10_000).collect()
    }

    /// The sequences of Guava's own tests: `testWarmUp` and `testWarmUpWithColdFactor` of `RateLimiterTest`.
    #[test]
    fn the_sequences_that_guava_documents() {
        for (per_second, factor, cold, warm, rest) in [
            (2, 3, [0, 138, 113, 88, 63, 50, 50, 50], [0, 50, 50, 50, 50, 50, 50, 50], 2_000_000),
            (5, 10, [0, 175, 126, 76, 30, 20, 20, 20], [0, 20, 20, 20, 20, 20, 20, 20], 1_000_000),
        ] {
            let rate = limiter(per_second, 1000, 4000, factor);
            let (mut stored, mut now, ones) = (None, START, [1; 8]);
            assert_eq!(hundredths(&acquire(&rate, &mut stored, &mut now, &ones)), cold);
            // It repays the last one and gets cold again.
            now += 1_000_000 / per_second + 4_000_000;
            assert_eq!(hundredths(&acquire(&rate, &mut stored, &mut now, &ones)), cold);
            // It repays the last one and does not get cold.
            now += 1_000_000 / per_second + rest;
            assert_eq!(hundredths(&acquire(&rate, &mut stored, &mut now, &ones)), warm);
        }
    }

    /// From cold to the threshold takes the warm-up period, from there to nothing half of it: the areas that define it. One
    /// by one or in larger parts is the same.
    #[test]
    fn a_cold_start_takes_the_warm_up_period() {
        for (requests, period, warm_up, factor) in
            [(8, 4000, 4000, 3), (100, 1000, 60_000, 3), (1000, 60_000, 600_000, 9), (10, 1000, 3_600_000, 4)]
        {
            let rate = limiter(requests, period, warm_up, factor);
            let interval = rate.period.micros() / requests;
            let (threshold, dear) =
                (warm_up * 1000 / 2 / interval, 2 * warm_up * 1000 / (interval * (1 + factor)));
            assert_eq!(2 * threshold * interval, warm_up * 1000, "whole permits");
            assert_eq!(dear * interval * (1 + factor), 2 * warm_up * 1000, "whole permits");
            for (permits, expected) in [(dear, warm_up * 1000), (dear + threshold, warm_up * 1500)] {
                for step in [1, 4] {
                    let (mut stored, mut now) = (None, START);
                    let costs = vec![step; (permits / step) as usize];
                    acquire(&rate, &mut stored, &mut now, &costs);
                    let total = now + wait(&stored.unwrap(), now) - START;
                    // Each request asks at the next whole microsecond, and what it comes late is stored, cold.
                    let late = factor * costs.len() as u64;
                    assert!((expected - 1..=expected + late).contains(&total), "{total} of {expected}");
                }
            }
        }
    }

    /// Step by step over schedules at random: when the next request may come, and what is left in store, is what is published,
    /// to a few units, if it begins with what was stored. Guava itself cuts three parts of each wait to whole microseconds,
    /// and so is up to three of them earlier each time.
    #[test]
    fn each_wait_is_the_published_one() {
        let (mut made, mut waited) = (0, 0);
        for seed in 1..=400 {
            let mut numbers = Numbers(seed);
            let (requests, period) = (1 + numbers.below(200), 1 + numbers.below(5000));
            let (warm_up, factor) = (1 + numbers.below(60_000), 2 + numbers.below(8));
            let rate = limiter(requests, period, warm_up, factor);
            let interval = rate.period.micros() as f64 / requests as f64;
            let (full, units) = ((warm_up * 1000) as f64, UNITS as f64);
            let of = |whole| Published::cold(interval, full, factor as f64, 0.0, whole);
            let (mut exact, mut guava) = (of(false), of(true));
            let (mut stored, mut now) = (None, START);
            for _ in 0..100 {
                now += match numbers.below(4) {
                    0 => numbers.below(warm_up * 2000),
                    1 => numbers.below(interval as u64 * 3 + 1),
                    _ => 0,
                };
                let cost = 1 + numbers.below(requests.min(5));
                let asked = now;
                let wait = acquire(&rate, &mut stored, &mut now, &[cost])[0];
                let turn = exact.next_free.max((asked - START) as f64);
                assert!(
                    (0.0..=1.0).contains(&((now - START) as f64 - turn)),
                    "at {now}, not {turn}, of {rate:?}"
                );
                (guava.stored, guava.next_free) = (exact.stored, exact.next_free);
                exact.reserve(cost as f64, (now - START) as f64);
                guava.reserve(cost as f64, (now - START) as f64);
                let cut = exact.next_free - guava.next_free;
                assert!((-1e-3..3.0).contains(&cut), "Guava cuts {cut} of {rate:?}");
                // What is stored is whole units.
                let record = stored.as_ref().unwrap();
                let free = (next(record) - START * UNITS) as f64 / units;
                assert!((exact.next_free - free).abs() < 0.01, "{free}, not {} of {rate:?}", exact.next_free);
                let store = record.current as f64 / units * exact.maximum / full;
                assert!((exact.stored - store) * full / exact.maximum < 0.01, "{store} of {rate:?}");
                (exact.stored, exact.next_free) = (store, free);
                made += 1;
                waited += u64::from(wait > 0);
            }
        }
        assert!(waited > made / 4, "{waited} of {made} waited");
    }

    /// A hundred requests after one another, with pauses, and no correction between: within a microsecond of what is
    /// published in all.
    #[test]
    fn a_hundred_requests_come_when_they_should_to_a_microsecond() {
        for seed in 1..=100 {
            let mut numbers = Numbers(seed);
            let requests = 1 + numbers.below(200);
            let rate = limiter(requests, 1000, 10_000, 3);
            let mut exact = Published::cold(1e6 / requests as f64, 1e7, 3.0, 0.0, false);
            let (mut stored, mut now) = (None, START);
            for n in 0..100 {
                now += if numbers.below(20) == 0 { numbers.below(20_000_000) } else { 0 };
                let asked = (now - START) as f64;
                acquire(&rate, &mut stored, &mut now, &[1]);
                let (turn, at) = (exact.next_free.max(asked), (now - START) as f64);
                assert!((-0.5..1.0).contains(&(at - turn)), "request {n} at {at}, not {turn}, of {rate:?}");
                exact.reserve(1.0, at);
            }
        }
    }
}
