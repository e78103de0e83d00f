//! Two moving averages that block sizes are made from: how fast this holder uses quota, and which share of
//! the counter's usage is its own. Pure; instants are microseconds of a clock that never goes back.

/// Number of requests that the average covers.
const AVERAGED_REQUESTS: f64 = 16.0;

/// Number of mean gaps without a request after which the average is considered outdated.
const OUTDATED_AFTER_GAPS: f64 = 12.0;

/// Shortest silence, in microseconds, after which no further request is expected.
const QUIET_AFTER: f64 = 1_000_000.0;

/// Shortest time that the average covers, in microseconds.
const SHORTEST_MEMORY: f64 = 200_000.0;

/// Demand for one key in this process: an exponential moving average of the requested cost.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Demand {
    /// Cost per microsecond.
    mean: f64,
    /// Cost requested since `since` and not averaged yet.
    requested: u64,
    since: u64,
    last_request: u64,
    /// Whether `mean` has been measured.
    measured: bool,
    is_quiet: bool,
}

impl Demand {
    pub(super) fn new(now: u64) -> Self {
        Self { since: now, last_request: now, ..Self::default() }
    }

    /// Records a request, admitted or not.
    pub(super) fn record(&mut self, now: u64, cost: u64) {
        self.requested = self.requested.saturating_add(cost);
        (self.last_request, self.is_quiet) = (now, false);
    }

    /// Reports whether requests have stopped for much longer than usual. Updated by
    /// [`Demand::per_microsecond`].
    pub(super) fn is_quiet(&self) -> bool {
        self.is_quiet
    }

    /// Returns the average at `now`, in cost per microsecond. Older requests fade: those before the last few,
    /// and those before the last `memory` microseconds.
    pub(super) fn per_microsecond(&mut self, now: u64, memory: u64) -> f64 {
        let of_few = if self.measured { AVERAGED_REQUESTS / self.mean.max(1e-12) } else { 0.0 };
        let memory = of_few.min(memory as f64).max(SHORTEST_MEMORY);
        let passed = now.saturating_sub(self.since) as f64;
        // Too short a time to measure a rate. It only shows that the rate is not below what was requested so
        // far.
        if passed < memory / 8.0 {
            let measured_over = if self.measured { memory / 8.0 } else { passed.max(1000.0) };
            return self.mean.max(self.requested as f64 / measured_over);
        }
        let weight = if self.measured { 1.0 - (-passed / memory).exp() } else { 1.0 };
        self.mean += weight * (self.requested as f64 / passed - self.mean);
        let silence = now.saturating_sub(self.last_request) as f64;
        if silence > SHORTEST_MEMORY && silence * self.mean > OUTDATED_AFTER_GAPS {
            self.mean = 1.0 / silence;
            self.is_quiet |= silence >= QUIET_AFTER;
        }
        (self.requested, self.since, self.measured) = (0, now, true);
        self.mean
    }
}

/// The share of a counter's usage that belongs to this holder: the quota it acquired between two of its
/// calls, divided by the growth of the counter. The inverse is the number of active holders if all are alike.
#[derive(Debug, Clone, Copy)]
pub(super) struct UsageShare {
    own: f64,
    total: f64,
}

impl UsageShare {
    /// Assumes this many equal holders until more is known.
    pub(super) fn among(holders: u64) -> Self {
        // A small weight, which a few observations outweigh.
        Self { own: 4.0 / holders.max(1) as f64, total: 4.0 }
    }

    /// Records that the counter grew by `total` while this holder acquired `own`. Observations older than
    /// about twice `capacity` requests fade.
    pub(super) fn observe(&mut self, own: u64, total: f64, capacity: u64) {
        self.own += own as f64;
        self.total += total.max(own as f64);
        if self.total > 2.0 * capacity as f64 {
            self.own /= 2.0;
            self.total /= 2.0;
        }
    }

    /// Returns the share, in (0, 1].
    pub(super) fn get(self) -> f64 {
        (self.own / self.total).clamp(1e-6, 1.0)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn demand_converges_to_a_constant_rate(per_second in 1u64..100_000, memory in 50_000u64..1_000_000) {
            let mut demand = Demand::new(0);
            let (mut requested, mut mean) = (0, 0.0);
            for millis in 1..5_000u64 {
                let due = millis * per_second / 1000;
                if due > requested {
                    demand.record(millis * 1000, due - requested);
                }
                requested = due;
                mean = demand.per_microsecond(millis * 1000, memory);
            }
            let truth = per_second as f64 / 1e6;
            // One request more or less in the shortest measured time, and the last few weigh most.
            let tolerance = 8.0 / memory.max(200_000) as f64 + truth * 0.2;
            prop_assert!((mean - truth).abs() <= tolerance, "{mean} instead of {truth}");
        }

        #[test]
        fn usage_share_converges_to_the_inverse_of_the_holders(
            holders in 1u64..50, prior in 1u64..50, blocks in proptest::collection::vec(1u64..40, 400..600),
        ) {
            let mut share = UsageShare::among(prior);
            for block in blocks {
                share.observe(block, (block * holders) as f64, 2_000);
            }
            let estimate = 1.0 / share.get();
            prop_assert!((estimate / holders as f64 - 1.0).abs() < 0.1, "{estimate} instead of {holders}");
        }
    }

    #[test]
    fn demand_falls_when_requests_stop() {
        let mut demand = Demand::new(0);
        for n in 1..1000 {
            demand.record(n * 1000, 1);
            demand.per_microsecond(n * 1000, 900_000_000);
        }
        assert!(demand.per_microsecond(1_000_000, 900_000_000) > 0.0005);
        // A thousand requests a second, then a second without any.
        assert!(demand.per_microsecond(2_000_000, 900_000_000) < 0.000_02);
    }
}
