//! Random records.

use rand::Rng;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use sluice_limiter::{Algorithm, Alignment, MAX_COUNT, MAX_PERIOD_MS, Overrun, Rate, Record, Soft};
use sluice_store::KeyHash;

use super::state::{DAY, Focus, World};

impl World {
    /// Returns a random record of a rate.
    pub(super) fn record(&mut self, rate: &Rate, key: KeyHash) -> Record {
        let any = |rng: &mut StdRng| match rng.random_range(0..3) {
            0 => rng.random_range(0..20),
            1 => rng.random_range(0..=MAX_COUNT),
            _ => MAX_COUNT - rng.random_range(0..5),
        };
        let now = self.now + rate.phase(key.0);
        let (millis, period) = (now / 1000, rate.period.millis());
        let mut record = Record::empty(rate.tag(), now);
        match rate.algorithm {
            Algorithm::SlidingWindowLog { min_interval, .. } => {
                let most = if self.rng.random_bool(0.3) { 1 } else { rate.requests.get() + 2 };
                let how_many = self.rng.random_range(1..=most);
                let latest = if self.rng.random_bool(0.2) { millis + 2 * period } else { millis };
                record.tail = (0..how_many)
                    .map(|_| match self.rng.random_range(0..4) {
                        0 => millis,
                        1 => millis - period + self.rng.random_range(0..3) - 1,
                        _ => self.rng.random_range(millis - period..=latest),
                    })
                    .collect();
                if min_interval > 0 && self.rng.random_bool(0.6) {
                    // About one interval ago.
                    record.tail.truncate(self.rng.random_range(0..4));
                    let newest = millis - min_interval + *[0, 1, 1, 2].choose(&mut self.rng).unwrap() - 1;
                    record.tail.retain(|&instant| instant < newest);
                    record.tail.push(newest);
                }
                record.tail.sort_by(|a, b| b.cmp(a));
                record.window = record.tail.first().copied().unwrap_or(0);
                return record;
            }
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } => {
                let cost = *[1, 1, 1, 2, 3].choose(&mut self.rng).unwrap();
                let [capacity, capacity_rest, span, span_rest, furthest] =
                    rate.full_script_arguments(key.0, cost);
                let requests = rate.requests.get();
                let fits_exactly = self.rng.random_bool(if self.is_of_buckets() { 0.5 } else { 0.25 });
                record.current = match self.rng.random_range(0..4) {
                    _ if fits_exactly && requests > 0 => {
                        (capacity_rest + requests - span_rest % requests + self.rng.random_range(0..3))
                            .saturating_sub(1)
                            % requests
                    }
                    0 => self.rng.random_range(0..3),
                    1 => requests + self.rng.random_range(0..2),
                    // With this cost, a whole microsecond.
                    2 => requests.saturating_sub(span_rest),
                    _ => self.rng.random_range(0..=requests),
                };
                let tat = match self.rng.random_range(0..9) {
                    // Just before and after this cost fits.
                    n if n < 1 || fits_exactly => {
                        (now + capacity).saturating_sub(span) + self.rng.random_range(0..3) - 1
                    }
                    // The record of a server whose clock was not set.
                    1 | 2 => span + self.rng.random_range(0..2),
                    3 => now - self.rng.random_range(0..3),
                    4 => now + furthest + self.rng.random_range(0..3) - 1,
                    5 => now + self.rng.random_range(0..=2 * furthest + 1),
                    6 => now + 3 * MAX_PERIOD_MS * 1000,
                    _ => now + self.rng.random_range(0..=furthest),
                };
                (record.window, record.previous) = (tat / 1000, tat % 1000);
                if self.rng.random_bool(0.1) {
                    // The next microsecond is in the next millisecond.
                    record.previous = 999;
                }
                return record;
            }
            Algorithm::WarmUp(warm_up) => {
                let free = now * 256 - 3
                    + self.rng.random_range(0..6)
                    + match self.rng.random_range(0..5) {
                        0 => self.rng.random_range(0..period * 256_000 * 12),
                        1 => 0,
                        2 => period * warm_up.cold_factor() * 256_000,
                        _ => self.rng.random_range(0..100_000_000),
                    };
                let free = if self.rng.random_bool(0.3) { free - 500_000_000 } else { free };
                (record.window, record.previous) = (free / 256_000, free % 256_000);
                record.current = self.rng.random_range(0..=warm_up.micros() * 260);
                return record;
            }
            Algorithm::Concurrency { .. } => {
                if self.rng.random_bool(0.1) {
                    // About the maximum number of holders. None of them sends a check.
                    let how_many = self.rng.random_range(998..=1001);
                    record.tail = (0..how_many).flat_map(|n| [100 + n, 1, millis + period]).collect();
                    record.window = millis + period;
                    return record;
                }
                let how_many = self.rng.random_range(1..6);
                record.tail = (0..how_many)
                    .flat_map(|_| {
                        let until = match self.rng.random_range(0..4) {
                            0 => millis + self.rng.random_range(0..3) - 1,
                            1 => millis + period + self.rng.random_range(0..3) - 1,
                            2 => millis + self.rng.random_range(0..3 * period),
                            _ => millis - self.rng.random_range(0..period),
                        };
                        [self.rng.random_range(1..8), self.rng.random_range(0..6), until]
                    })
                    .collect();
                record.window = record.tail.chunks(3).map(|holder| holder[2]).max().unwrap();
                return record;
            }
            Algorithm::Reservations { .. } => {
                // About the maximum number of reservations, or a few.
                let is_full = self.rng.random_bool(0.1);
                let how_many =
                    if is_full { self.rng.random_range(998..=1001) } else { self.rng.random_range(1..4) };
                record.tail = (0..how_many)
                    .flat_map(|n| {
                        let until = match self.rng.random_range(0..10) {
                            _ if is_full => millis + 1 + self.rng.random_range(0..period),
                            8 => millis + MAX_PERIOD_MS + self.rng.random_range(0..DAY),
                            0 => millis + self.rng.random_range(0..3) - 1,
                            1 => millis + MAX_PERIOD_MS + self.rng.random_range(0..3) - 1,
                            2 => millis - self.rng.random_range(0..period),
                            _ => millis + self.rng.random_range(0..3 * period),
                        };
                        let id = if is_full { 100 + n } else { self.rng.random_range(1..8) };
                        let cost = any(&mut self.rng).max(1);
                        let charged = millis - self.rng.random_range(0..period);
                        [id, cost, charged, self.rng.random_range(0..1003), until]
                    })
                    .collect();
                record.window = record.tail.chunks(5).map(|one| one[4]).max().unwrap();
                return record;
            }
            Algorithm::Block { lasts } => {
                let edge = |rng: &mut StdRng, length: u64| match rng.random_range(0..5) {
                    0 => millis - length + rng.random_range(0..3) - 1,
                    1 => millis + rng.random_range(0..3 * length),
                    2 => millis,
                    _ => millis - rng.random_range(0..=length),
                };
                let is_long = self.rng.random_bool(0.1);
                let how_many =
                    if is_long { self.rng.random_range(999..1002) } else { self.rng.random_range(0..6) };
                record.tail = (0..how_many).map(|_| edge(&mut self.rng, period)).collect();
                record.tail.sort_by(|a, b| b.cmp(a));
                record.window = match record.tail.first() {
                    Some(newest) if self.rng.random_bool(0.9) => newest + period,
                    // The block is about to end, or has just ended.
                    _ => edge(&mut self.rng, lasts.millis()) + lasts.millis(),
                };
                return record;
            }
            Algorithm::FixedWindow(Alignment::FirstRequest) => {
                record.current = any(&mut self.rng) % (rate.requests.get() + 2);
                record.window = match self.rng.random_range(0..5) {
                    0 => millis - period + self.rng.random_range(0..3) - 1,
                    1 => millis + period + self.rng.random_range(0..3) - 1,
                    2 => millis + self.rng.random_range(0..3 * period),
                    _ => millis - self.rng.random_range(0..period),
                };
                self.add_overrun(rate, &mut record, millis);
                return record;
            }
            _ => {}
        }
        if rate.tag().previous_windows() > 0 && self.rng.random_bool(0.8) {
            record.previous = any(&mut self.rng);
        }
        let modest = rate.requests.get() / 20 + 2;
        for n in 0..record.tail.len() {
            record.tail[n] =
                if self.rng.random_bool(0.1) { any(&mut self.rng) } else { self.rng.random_range(0..modest) };
        }
        record.current = any(&mut self.rng);
        match self.rng.random_range(0..12) {
            0 => record.window -= 1,
            1 => record.window -= self.rng.random_range(0..4),
            2 => record.window += 1,
            3 => record.window += self.rng.random_range(2..5),
            4 => record.window += 40 * MAX_PERIOD_MS / rate.period.millis(),
            _ => {
                // Nearly full or just over; some records by a clock that was ahead.
                record.window += u64::from(self.rng.random_bool(0.1));
                record.previous %= rate.requests.get() + 1;
                if !record.tail.is_empty() {
                    record.previous %= modest;
                    record.tail.iter_mut().for_each(|count| *count %= modest);
                }
                if record.previous > 0 && record.tail.is_empty() && self.rng.random_bool(0.8) {
                    record.previous = self.hard_count(rate, MAX_COUNT).unwrap_or(record.previous);
                }
                record.current = 0;
                let (rolled, at) = rate.roll(Some(record.clone()), now);
                let spare = rate.ceiling().saturating_sub(rate.used(&rolled, at));
                let most = if self.focus == Focus::Huge { 3 } else { 5 };
                record.current = (spare + 1).saturating_sub(self.rng.random_range(0..most));
                if self.is_everyday() && self.rng.random_bool(0.4) {
                    let most = spare.min(1 << self.rng.random_range(0..30));
                    record.current = self.rng.random_range(0..=most);
                }
            }
        }
        self.add_overrun(rate, &mut record, millis);
        record
    }

    /// Adds an overrun to some records, mostly to those of soft rates.
    pub(super) fn add_overrun(&mut self, rate: &Rate, record: &mut Record, millis: u64) {
        if self.rng.random_bool(if rate.soft.is_some() { 0.6 } else { 0.05 }) {
            let (period, extra) = (rate.period.millis(), rate.soft.map_or(DAY, Soft::millis));
            let near = |rng: &mut StdRng| match rng.random_range(0..16) {
                0..3 => millis + rng.random_range(0..3) - 1,
                3..6 => millis - period + rng.random_range(0..3) - 1,
                6..9 => millis - rng.random_range(0..4000),
                9..12 => millis + rng.random_range(0..4000),
                12 => rng.random_range(1..3),
                _ => millis + DAY - rng.random_range(0..2 * DAY),
            };
            let (a, b) = match self.rng.random_range(0..8) {
                // The extra is about to end, or has just ended.
                0 => (millis - extra + self.rng.random_range(0..3) - 1, millis),
                1 | 2 => (millis - extra, millis),
                // It is available again, at last.
                3 => (millis - period - self.rng.random_range(0..100), millis - period),
                // The record of a clock that was far ahead.
                4 => {
                    let is_instant = rate.algorithm == Algorithm::FixedWindow(Alignment::FirstRequest);
                    record.window += if is_instant { 3 * period } else { 3 };
                    (millis + 3 * MAX_PERIOD_MS, millis + 3 * MAX_PERIOD_MS + self.rng.random_range(0..200))
                }
                _ => (near(&mut self.rng), near(&mut self.rng)),
            };
            record.overrun = Overrun { since: a.min(b), last: a.max(b) };
        }
    }

    /// Returns a previous count whose product with the overlap is just above or below a multiple of the
    /// period, where an inexact product rounds to the wrong side. It is at most `most`.
    pub(super) fn hard_count(&mut self, rate: &Rate, most: u64) -> Option<u64> {
        let period = i128::from(rate.period.millis());
        let rest = period - i128::from(self.now / 1000) % period;
        let (divisor, factor) = euclid(rest, period);
        let left = *[-2, -1, 0, 0, 0, 1, 1, 1].choose(&mut self.rng).unwrap();
        let least = match left {
            0 => self.rng.random_range(0..divisor) * (period / divisor),
            left => (left * factor).rem_euclid(period),
        } as u64;
        let more = most.min(rate.requests.get()).checked_sub(least)? / rate.period.millis();
        Some(least + self.rng.random_range(0..=more) * rate.period.millis())
    }
}

/// Returns the greatest common divisor of `a` and `m`, and the factor of `a` that yields it modulo `m`
/// (extended Euclidean algorithm).
fn euclid(a: i128, m: i128) -> (i128, i128) {
    let ((mut r0, mut r1), (mut t0, mut t1)) = ((m, a.rem_euclid(m)), (0, 1));
    while r1 != 0 {
        let q = r0 / r1;
        (r0, r1) = (r1, r0 - q * r1);
        (t0, t1) = (t1, t0 - q * t1);
    }
    (r0, t0)
}
