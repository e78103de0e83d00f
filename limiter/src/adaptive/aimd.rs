//! Additive increase, multiplicative decrease (AIMD).
//!
//! After D. Chiu and R. Jain, "Analysis of the Increase and Decrease Algorithms for Congestion Avoidance in
//! Computer Networks", 1989; applied to requests in flight by Netflix's concurrency-limits (`AIMDLimit`).
//!
//! Differences from `AIMDLimit`:
//! - The signal. There it is a drop or a round trip above a timeout (5 s). If a server that answers in 10 ms
//!   has a long queue, neither happens before the queue holds seconds of work. So here a window with a mean
//!   round trip above `tolerance` baselines is a signal too, and the timeout remains as the outer bound.
//! - One step a window, as in the paper, not one a sample. A queue makes a whole limit of samples late, and
//!   each would lower the limit again, down to the minimum.
//! - The increase is a twentieth of the limit, at least 1, so that from 100 to 200 it takes 14 windows
//!   instead of 100. The price is fairness among several senders, which needs a constant increase, as the
//!   paper shows.

use super::parameter::{InvalidParameter, within};
use super::sample_window::WindowSummary;

/// The parameters of AIMD.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aimd {
    /// Factor of the limit on overload, 0.5 to 0.99. Published and default: 0.9.
    pub backoff: f64,
    /// Share of the limit, but at least 1, by which it grows in a window without overload, 0 to 1. Published:
    /// 0; default: 0.05.
    pub increase: f64,
    /// Mean round trip of a window, in baselines, above which it is overloaded, 1.01 to 100. Default: 1.1. It
    /// has to leave room for the variation of the round trips divided by the square root of the limit.
    pub tolerance: f64,
    /// Time in microseconds after which a request counts as dropped, whatever its outcome; at least 1.
    /// Published and default: 5 s.
    pub timeout_us: u64,
    /// Number of round trips between probes; 0 for none. Default: 200.
    pub probe_every: u32,
}

impl Default for Aimd {
    fn default() -> Self {
        Self { backoff: 0.9, increase: 0.05, tolerance: 1.1, timeout_us: 5_000_000, probe_every: 200 }
    }
}

impl Aimd {
    pub(super) fn check(&self) -> Result<(), InvalidParameter> {
        within("backoff", self.backoff, 0.5, 0.99)?;
        within("increase", self.increase, 0.0, 1.0)?;
        within("tolerance", self.tolerance, 1.01, 100.0)?;
        within("timeout_us", self.timeout_us as f64, 1.0, u64::MAX as f64)
    }

    /// Returns the limit after a window.
    #[must_use]
    pub fn next(&self, limit: f64, window: &WindowSummary) -> f64 {
        let late = window.round_trip_us.is_some_and(|us| us > window.baseline_us * self.tolerance);
        if window.dropped || (late && window.saturated) {
            (limit * self.backoff).min(limit - 1.0)
        } else if window.saturated {
            limit + (limit * self.increase).max(1.0)
        } else {
            limit
        }
    }
}
