//! Gradient2, from Netflix's concurrency-limits (`Gradient2Limit`).
//!
//! The limit is multiplied by the ratio of the long-term to the current round trip, at least one half and at
//! most 1, and a queue is added: `limit * gradient + queue`. A share `smoothing` of that change is applied.
//!
//! Differences from `Gradient2Limit`:
//! - The long-term round trip is an average over `long_window` windows upwards only, and probes set it. The
//!   published one is the average alone. Under constant overload that follows the queue, so the limit never
//!   stops growing, by about `2 * queue / long_window` a window. After an overload it stays high, so the
//!   limit grows immediately.
//! - The queue is a share of the limit, not 4 requests. 4 is too many for a server that can handle 10, and
//!   with the published smoothing it takes 100 windows from 100 to 200. The smoothing is 1, not 0.2: a window
//!   is smooth already.
//! - A window with drops has a gradient of at most 0.9 and adds no queue. In the published version drops
//!   count as round trips, so a server that refuses quickly raises the limit.
//! - `tolerance` comes from the older `GradientLimit`. A little of it makes up for a baseline that was
//!   measured too low.

use super::parameter::{InvalidParameter, within};
use super::sample_window::WindowSummary;

/// The parameters of Gradient2.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Gradient2 {
    /// Number of windows over which the long-term round trip follows the current one upwards, 10 to
    /// 1,000,000. Published and default: 600.
    pub long_window: u32,
    /// Ratio of the current to the long-term round trip up to which the limit does not shrink, 1 to 10.
    /// Published: 1 (no such parameter); default: 1.03.
    pub tolerance: f64,
    /// Share of a change that is applied, 0.01 to 1. Published: 0.2; default: 1.
    pub smoothing: f64,
    /// Queue to allow, as a share of the limit but at least one request, 0 to 1. Default: 0.05.
    pub queue: f64,
    /// Number of round trips between probes; 0 for none. Published: none; default: 200.
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

    /// Returns the factor of an exponential average over `long_window` windows.
    pub(super) fn drift(&self) -> f64 {
        2.0 / (f64::from(self.long_window) + 1.0)
    }

    /// Returns the limit after a window.
    #[must_use]
    pub fn next(&self, limit: f64, window: &WindowSummary) -> f64 {
        let gradient =
            window.round_trip_us.map_or(0.5, |us| self.tolerance * window.baseline_us / us).clamp(0.5, 1.0);
        let target = if window.dropped {
            limit * gradient.min(0.9)
        } else if window.saturated {
            limit * gradient + (limit * self.queue).max(1.0)
        } else {
            limit
        };
        limit + (target - limit) * self.smoothing
    }
}
