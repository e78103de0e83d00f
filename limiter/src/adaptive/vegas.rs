//! Vegas.
//!
//! After L. Brakmo and L. Peterson, "TCP Vegas: End to End Congestion Avoidance on a Global Internet", 1995;
//! applied to requests in flight by Netflix's concurrency-limits (`VegasLimit`).
//!
//! At a limit L, L * (1 - baseline / round trip) requests wait in the server's queue. The limit grows while
//! they are fewer than `alpha`, shrinks when they are more than `beta`, and grows faster while they are fewer
//! than `threshold`.
//!
//! Differences from `VegasLimit`:
//! - Thresholds and steps are shares of the limit. The published ones are its log10 times 1, 3 and 6, with
//!   steps of one log10, which take 50 steps of two round trips from 200 to 100. A constant share takes the
//!   same number of round trips at every size, and limits the queue to `beta` at every size.
//! - The baseline is the mean over a window of a probe. The published one is the minimum of single round
//!   trips, and every 30 limits an arbitrary sample. If round trips vary, the minimum makes every other round
//!   trip look like a queue. The arbitrary sample includes the existing queue, so the limit creeps up each
//!   time.

use super::parameter::{InvalidParameter, within};
use super::sample_window::WindowSummary;

/// The parameters of Vegas. A share of the limit counts as at least half a request.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Vegas {
    /// Share of the limit in the queue up to which the limit grows by `beta`, 0 to 1. Default: 0.03.
    pub threshold: f64,
    /// Share up to which the limit grows by `threshold`, 0 to 1. Default: 0.06.
    pub alpha: f64,
    /// Share above which the limit shrinks by `step`, 0.01 to 1. Default: 0.1.
    pub beta: f64,
    /// Share of the limit by which it shrinks, 0.01 to 0.5. Default: 0.1.
    pub step: f64,
    /// Share of a change that is applied, 0.01 to 1. Published and default: 1.
    pub smoothing: f64,
    /// Number of round trips between probes; 0 for none. Published: 30; default: 200, because a probe here
    /// costs throughput.
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

    /// Returns the limit after a window.
    #[must_use]
    pub fn next(&self, limit: f64, window: &WindowSummary) -> f64 {
        let share = |of: f64| (limit * of).max(0.5);
        let queue = window.round_trip_us.map_or(0.0, |us| limit * (1.0 - window.baseline_us / us));
        let change = if window.dropped {
            -share(self.step)
        } else if !window.saturated {
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
