//! How much a client needs at most within a period: the number that would never deny it.

use sluice_limiter::Windows;

/// Parts of a period. The result is too high by one part of them at most.
const PARTS: usize = 32;

/// The largest sum of costs within any period, or within any of the periods of the clock. It is never too low.
#[derive(Debug, Clone)]
pub(super) struct Demand {
    /// Costs of the current part and of those before it.
    parts: [u32; PARTS + 1],
    /// Number of the current part.
    current: u64,
    /// Length of a part, in microseconds.
    length: u64,
    /// Whether a part is a whole period of the clock, which alone counts.
    is_clock: bool,
    sum: u64,
    peak: u64,
}

impl Demand {
    /// Creates the demand of a client within a period, in milliseconds, for an algorithm with such windows.
    pub(super) fn new(period_millis: u64, windows: Option<Windows>) -> Self {
        let is_clock = windows == Some(Windows::Clock);
        let parts = if is_clock { 1 } else { PARTS as u64 };
        let length = (period_millis * 1_000).div_ceil(parts).max(1);
        Self { parts: [0; PARTS + 1], current: 0, length, is_clock, sum: 0, peak: 0 }
    }

    /// Adds a request, and reports whether the client needs more than before. Time does not go back.
    pub(super) fn add(&mut self, at: u64, cost: u64) -> bool {
        let part = at / self.length;
        if self.is_clock && part > self.current {
            (self.parts, self.sum) = ([0; PARTS + 1], 0);
            self.current = part;
        }
        let passed = part.saturating_sub(self.current).min(PARTS as u64 + 1);
        for n in 1..=passed {
            let slot = ((self.current + n) % (PARTS as u64 + 1)) as usize;
            // After a long pause the slots are cleared in any order.
            self.sum -= u64::from(std::mem::take(&mut self.parts[slot]));
        }
        self.current = self.current.max(part);
        let slot = (self.current % (PARTS as u64 + 1)) as usize;
        let before = self.parts[slot];
        self.parts[slot] = before.saturating_add(u32::try_from(cost).unwrap_or(u32::MAX));
        self.sum += u64::from(self.parts[slot] - before);
        let is_more = self.sum > self.peak;
        self.peak = self.peak.max(self.sum);
        is_more
    }

    /// Returns the number that would never have denied the client.
    pub(super) fn peak(&self) -> u64 {
        self.peak
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the exact demand.
    fn exact(times: &[u64], period: u64) -> u64 {
        let window = |end: &u64| times.iter().filter(|at| *at <= end && **at + period > *end).count() as u64;
        times.iter().map(window).max().unwrap_or(0)
    }

    #[test]
    fn the_demand_is_never_too_low_and_covers_little_more_than_a_period() {
        let mut state = 7u64;
        for _ in 0..200 {
            let mut at = 0;
            let times: Vec<u64> = (0..200)
                .map(|_| {
                    state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                    at += (state >> 40) % 3_000_000;
                    at
                })
                .collect();
            let mut demand = Demand::new(60_000, Some(Windows::Any));
            for at in &times {
                demand.add(*at, 1);
            }
            let (low, high) = (exact(&times, 60_000_000), exact(&times, 60_000_000 * 34 / 32));
            assert!((low..=high).contains(&demand.peak()), "{low} {} {high}", demand.peak());
        }
    }

    #[test]
    fn periods_of_the_clock_are_counted_apart() {
        let mut demand = Demand::new(60_000, Some(Windows::Clock));
        // 100 at the end of a minute, 114 at the beginning of the next.
        for n in 0..214 {
            demand.add(if n < 100 { 59_999_999 } else { 60_000_000 }, 1);
        }
        assert_eq!(demand.peak(), 114);
    }

    #[test]
    fn pauses_of_any_length_end_a_period() {
        let mut demand = Demand::new(60_000, Some(Windows::Any));
        for minutes in [0, 2, 1_000_000, 1_000_002] {
            demand.add(minutes * 60_000_000, 3);
        }
        assert_eq!(demand.peak(), 3);
        demand.add(1_000_002 * 60_000_000, u64::MAX);
        assert_eq!(demand.peak(), u64::from(u32::MAX));
    }
}
