//! Random records.

use rand::Rng;
use rand::rngs::StdRng;
use sluice_limiter::{Algorithm, Alignment, MAX_COUNT, MAX_PERIOD_MS, Overrun, Rate, Record};
use sluice_store::KeyHash;

use super::state::{DAY, World};

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
            Algorithm::SlidingWindowLog { .. } => {
                let how_many = self.rng.random_range(1..=rate.requests.get() + 2);
                let latest = if self.rng.random_bool(0.2) { millis + 2 * period } else { millis };
                record.tail = (0..how_many)
                    .map(|_| match self.rng.random_range(0..4) {
                        0 => millis,
                        1 => millis - period + self.rng.random_range(0..3) - 1,
                        _ => self.rng.random_range(millis - period..=latest),
                    })
                    .collect();
                record.tail.sort_by(|a, b| b.cmp(a));
                record.window = record.tail.first().copied().unwrap_or(0);
                return record;
            }
            Algorithm::TokenBucket { .. } | Algorithm::Gcra { .. } | Algorithm::LeakyBucket { .. } => {
                let cost = self.rng.random_range(1..4);
                let [capacity, _, span, _, furthest] = rate.full_script_arguments(key.0, cost);
                let tat = match self.rng.random_range(0..8) {
                    0 => now - self.rng.random_range(0..3),
                    1 => now + furthest + self.rng.random_range(0..3) - 1,
                    2 => now + self.rng.random_range(0..=2 * furthest + 1),
                    3 => now + 3 * MAX_PERIOD_MS * 1000,
                    // Just before and after this cost fits.
                    4..6 => (now + capacity).saturating_sub(span) + self.rng.random_range(0..3) - 1,
                    _ => now + self.rng.random_range(0..=furthest),
                };
                (record.window, record.previous) = (tat / 1000, tat % 1000);
                record.current = self.rng.random_range(0..=rate.requests.get());
                return record;
            }
            Algorithm::WarmUp(warm_up) => {
                let free = now * 256 - 3
                    + self.rng.random_range(0..6)
                    + match self.rng.random_range(0..4) {
                        0 => self.rng.random_range(0..period * 256_000 * 12),
                        1 => 0,
                        _ => self.rng.random_range(0..100_000_000),
                    };
                let free = if self.rng.random_bool(0.3) { free - 500_000_000 } else { free };
                (record.window, record.previous) = (free / 256_000, free % 256_000);
                record.current = self.rng.random_range(0..=warm_up.micros() * 260);
                return record;
            }
            Algorithm::Concurrency { .. } => {
                if self.rng.random_bool(0.05) {
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
                if record.previous > 0 && record.tail.is_empty() && self.rng.random_bool(0.5) {
                    record.previous = self.hard_count(rate).unwrap_or(record.previous);
                }
                record.current = 0;
                let (rolled, at) = rate.roll(Some(record.clone()), now);
                let spare = rate.ceiling().saturating_sub(rate.used(&rolled, at));
                record.current = (spare + 1).saturating_sub(self.rng.random_range(0..5));
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
            let period = rate.period.millis();
            let near = |rng: &mut StdRng| match rng.random_range(0..4) {
                0 => millis + rng.random_range(0..3) - 1,
                1 => millis - period.min(DAY) + rng.random_range(0..3) - 1,
                2 => millis - rng.random_range(0..4000),
                _ => millis + DAY - rng.random_range(0..2 * DAY),
            };
            let (a, b) = (near(&mut self.rng), near(&mut self.rng));
            record.overrun = Overrun { since: a.min(b), last: a.max(b) };
        }
    }

    /// Returns a previous count whose product with the overlap is just above or below a multiple of the
    /// period, where an inexact product rounds to the wrong side.
    pub(super) fn hard_count(&mut self, rate: &Rate) -> Option<u64> {
        let period = i128::from(rate.period.millis());
        let rest = period - i128::from(self.now / 1000) % period;
        let (divisor, factor) = euclid(rest, period);
        let least = match self.rng.random_range(-2..3) {
            0 => self.rng.random_range(0..divisor) * (period / divisor),
            left => (left * factor).rem_euclid(period),
        } as u64;
        let more = rate.requests.get().checked_sub(least)? / rate.period.millis();
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
