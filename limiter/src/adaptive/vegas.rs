//! Vegas: L. Brakmo and L. Peterson, "TCP Vegas: End to End Congestion Avoidance on a Global Internet", 1995; as a
//! limit of requests in Netflix's concurrency-limits (`VegasLimit`).
//!
//! At a limit L, L * (1 - baseline / round trip) requests wait in the server's queue. The limit grows while they are
//! fewer than `alpha`, shrinks when they are more than `beta`, and grows faster while they are fewer than
//! `threshold`.
//!
//! Where this differs from `VegasLimit`, and why:
//! - Thresholds and steps are shares of the limit; published are log10 of it, times 1, 3 and 6, and steps of one
//!   log10. From 200 to 100 that takes 50 steps of two round trips. A constant share takes the same number of
//!   round trips at every size, and bounds the queue to `beta` at every size.
//! - The baseline is a mean over a window of a probe; published is the minimum of single round trips, and every
//!   30 limits one sample as it comes. The minimum sees a queue wherever round trips vary; the sample as it comes has
//!   the standing queue in it, and the limit creeps up by it each time.

use super::{InvalidParameter, Summary, within};

/// The parameters of Vegas. A share of the limit counts as half a request at least.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Vegas {
    /// Up to this share of the limit in the queue, the limit grows by `beta`: 0 to 1. The default is 0.03.
    pub threshold: f64,
    /// Up to this share, the limit grows by `threshold`: 0 to 1. The default is 0.06.
    pub alpha: f64,
    /// Above this share, the limit shrinks by `step`: 0.01 to 1. The default is 0.1.
    pub beta: f64,
    /// The share that one decrease takes: 0.01 to 0.5. The default is 0.1.
    pub step: f64,
    /// How much of a change is carried out: 0.01 to 1. Published 1, the default.
    pub smoothing: f64,
    /// Round trips between probes; 0 for none. Published 30; the default is 200, as a probe here costs throughput.
    pub probe_every: u32,
}

impl Default for Vegas {
    fn default() -> Self {
        Self { threshold: 0.03, alpha: 0.06, beta: 0.1, step: 0.1, smoothing: 1.0, probe_every: 200 }
    }
}

impl Vegas {
    pub(super) fn check(&self) -> Result<(), InvalidParameter> {
        within("beta", self.beta, 0.01, 1.0)?;
        within("alpha", self.alpha, 0.0, self.beta)?;
        within("threshold", self.threshold, 0.0, self.alpha)?;
        within("step", self.step, 0.01, 0.5)?;
        within("smoothing", self.smoothing, 0.01, 1.0)
    }

    /// The limit after a window.
    #[must_use]
    pub fn next(&self, limit: f64, seen: &Summary) -> f64 {
        let share = |of: f64| (limit * of).max(0.5);
        let queue = seen.round_trip_us.map_or(0.0, |us| limit * (1.0 - seen.baseline_us / us));
        let change = if seen.dropped {
            -share(self.step)
        } else if !seen.saturated {
            0.0
        } else if queue <= share(self.threshold) {
            share(self.beta)
        } else if queue < share(self.alpha) {
            share(self.threshold)
        } else if queue > share(self.beta) {
            -share(self.step)
        } else {
            0.0
        };
        limit + change * self.smoothing
    }
}
