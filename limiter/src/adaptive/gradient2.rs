//! Gradient2, from Netflix's concurrency-limits (`Gradient2Limit`): the limit is multiplied by the ratio of the
//! long-term to the current round trip, at least one half and at most 1, and a queue is added:
//! `limit * gradient + queue`, of which `smoothing` is carried out.
//!
//! Where this differs from `Gradient2Limit`, and why:
//! - The long-term round trip is an average over `long_window` windows upwards only, and probes set it. Published, it
//!   is the average alone: under constant overload it follows the queue, and the limit grows by about
//!   `2 * queue / long_window` a window, for ever; and after an overload it stays high, and the limit grows at once.
//! - The queue is a share of the limit, not 4: 4 is too many for a server that bears 10, and from 100 to 200 it
//!   takes 100 windows at the published smoothing. The smoothing is 1, not 0.2: a window is smooth already.
//! - A window with drops is a gradient of 0.9 at most and adds no queue. Published, drops count as round trips: a
//!   server that refuses quickly raises the limit.
//! - `tolerance` is of the older `GradientLimit`; a little of it bears a baseline that is measured a little too low.

use super::{InvalidParameter, Summary, within};

/// The parameters of Gradient2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gradient2 {
    /// Windows over which the long-term round trip follows the current one upwards: 10 to 1,000,000. Published 600,
    /// the default.
    pub long_window: u32,
    /// The current round trip may be so many times the long-term one without a decrease: 1 to 10. Published 1 (there
    /// is none); the default is 1.03.
    pub tolerance: f64,
    /// How much of a change is carried out: 0.01 to 1. Published 0.2; the default is 1.
    pub smoothing: f64,
    /// The queue to allow, as a share of the limit, at least one request: 0 to 1. The default is 0.05.
    pub queue: f64,
    /// Round trips between probes; 0 for none. Published none; the default is 200.
    pub probe_every: u32,
}

impl Default for Gradient2 {
    fn default() -> Self {
        Self { long_window: 600, tolerance: 1.03, smoothing: 1.0, queue: 0.05, probe_every: 200 }
    }
}

impl Gradient2 {
    pub(super) fn check(&self) -> Result<(), InvalidParameter> {
        within("long_window", self.long_window, 10, 1_000_000)?;
        within("tolerance", self.tolerance, 1.0, 10.0)?;
        within("smoothing", self.smoothing, 0.01, 1.0)?;
        within("queue", self.queue, 0.0, 1.0)
    }

    /// The factor of an exponential average over `long_window` windows.
    pub(super) fn drift(&self) -> f64 {
        2.0 / (f64::from(self.long_window) + 1.0)
    }

    /// The limit after a window.
    #[must_use]
    pub fn next(&self, limit: f64, seen: &Summary) -> f64 {
        let gradient =
            seen.round_trip_us.map_or(0.5, |us| self.tolerance * seen.baseline_us / us).clamp(0.5, 1.0);
        let target = if seen.dropped {
            limit * gradient.min(0.9)
        } else if seen.saturated {
            limit * gradient + (limit * self.queue).max(1.0)
        } else {
            limit
        };
        limit + (target - limit) * self.smoothing
    }
}
