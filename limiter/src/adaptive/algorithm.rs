//! The algorithms of adaptive limits.

use super::aimd::Aimd;
use super::gradient2::Gradient2;
use super::parameter::InvalidParameter;
use super::sample_window::WindowSummary;
use super::vegas::Vegas;

/// The algorithm of an adaptive limit, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum AdaptiveAlgorithm {
    /// Additive increase, multiplicative decrease.
    Aimd(Aimd),
    /// Keeps a small queue, estimated from the difference to the round trip without one.
    Vegas(Vegas),
    /// Follows the ratio of the long-term to the current round trip.
    Gradient2(Gradient2),
}

impl AdaptiveAlgorithm {
    /// Checks the parameters.
    pub(super) fn check(&self) -> Result<(), InvalidParameter> {
        match self {
            Self::Aimd(aimd) => aimd.check(),
            Self::Vegas(vegas) => vegas.check(),
            Self::Gradient2(gradient2) => gradient2.check(),
        }
    }

    /// Returns the limit after a window.
    pub(super) fn next(&self, limit: f64, window: &WindowSummary) -> f64 {
        match self {
            Self::Aimd(aimd) => aimd.next(limit, window),
            Self::Vegas(vegas) => vegas.next(limit, window),
            Self::Gradient2(gradient2) => gradient2.next(limit, window),
        }
    }

    /// Reports whether a response after `round_trip_us` counts as dropped.
    pub(super) fn is_too_late(&self, round_trip_us: u64) -> bool {
        matches!(self, Self::Aimd(aimd) if round_trip_us > aimd.timeout_us)
    }

    /// Returns the number of round trips between probes; 0 for none.
    pub(super) fn probe_every(&self) -> u32 {
        match self {
            Self::Aimd(Aimd { probe_every, .. })
            | Self::Vegas(Vegas { probe_every, .. })
            | Self::Gradient2(Gradient2 { probe_every, .. }) => *probe_every,
        }
    }

    /// Returns the share by which the baseline follows each window upwards.
    pub(super) fn drift(&self) -> f64 {
        match self {
            Self::Gradient2(gradient2) => gradient2.drift(),
            Self::Aimd(_) | Self::Vegas(_) => 0.0,
        }
    }
}
