//! Additive increase, multiplicative decrease: D. Chiu and R. Jain, "Analysis of the Increase and Decrease Algorithms
//! for Congestion Avoidance in Computer Networks", 1989; as a limit of requests in Netflix's concurrency-limits
//! (`AIMDLimit`).
//!
//! Where this differs from `AIMDLimit`, and why:
//! - The signal. There it is a drop or a round trip above a timeout (5 s); at a server that answers in 10 ms with a
//!   long queue neither comes before the queue holds seconds of work. Here a window whose mean round trip is above
//!   `tolerance` baselines is a signal too, and the timeout stays as the outer bound.
//! - One step a window, as in the paper, not one a sample: a queue makes a whole limit of samples late, and each
//!   would cut again, down to the minimum.
//! - The increase is a twentieth of the limit, no less than 1, so that from 100 to 200 it takes 14 windows instead of
//!   100. Fairness among several senders, which the paper shows to need a constant increase, is given up for that.

use super::{InvalidParameter, Summary, within};

/// The parameters of AIMD.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Aimd {
    /// The limit is multiplied by it on overload: 0.5 to 0.99. Published 0.9, the default.
    pub backoff: f64,
    /// The limit grows by this share of itself in a window without overload, but at least by 1: 0 to 1. Published 0;
    /// the default is 0.05.
    pub increase: f64,
    /// A window with a mean round trip above so many baselines is overload: 1.01 to 100. The default is 1.1; what
    /// the round trips vary by, over the root of the limit, must fit in.
    pub tolerance: f64,
    /// A request that takes longer is dropped, whatever its outcome: at least 1, in microseconds. Published 5 s, the
    /// default.
    pub timeout_us: u64,
    /// Round trips between probes; 0 for none. The default is 200.
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

    /// The limit after a window.
    #[must_use]
    pub fn next(&self, limit: f64, seen: &Summary) -> f64 {
        let late = seen.round_trip_us.is_some_and(|us| us > seen.baseline_us * self.tolerance);
        if seen.dropped || (late && seen.saturated) {
            (limit * self.backoff).min(limit - 1.0)
        } else if seen.saturated {
            limit + (limit * self.increase).max(1.0)
        } else {
            limit
        }
    }
}
