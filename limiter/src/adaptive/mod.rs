//! How many requests at a time a server can bear, learnt from its answers: pure functions, as the rest of this crate,
//! but over floating point and for one process only. Whoever calls brings the time.
//!
//! In the order in which a sample meets them:
//! - [`Adaptive`]: takes one sample for each answer and holds the current limit.
//! - `window`: samples are gathered for about two round trips; an algorithm sees only the summary.
//! - `baseline`: the round trip of a server without a queue, and the probes that measure it.
//! - [`aimd`], [`vegas`], [`gradient2`]: from a limit and a summary to the next limit.
//!
//! What holds for all algorithms and is not in their sources:
//! - The limit changes once a window, not once a sample: its speed is per round trip, whatever the rate. A window
//!   waits until answers tell of the current limit, so that no change is judged by the queue of the limit before it.
//! - Every 100 to 200 round trips, and when cuts do not shorten the round trip, the limit is halved for a few round
//!   trips to measure the round trip without a queue. Under constant overload every other estimate of it creeps up
//!   with the queue that the limit itself allows.
//! - A difference that may be chance is taken for no queue. Where round trips vary by a third, the limit is near the
//!   best within 50 round trips of a change; where they vary by their mean, it takes about twice as long.
//!
//! Times are integer microseconds on any clock, limits are requests in flight.

pub mod aimd;
mod baseline;
pub mod gradient2;
#[cfg(test)]
mod simulation;
pub mod vegas;
mod window;

pub use aimd::Aimd;
pub use gradient2::Gradient2;
pub use vegas::Vegas;

use baseline::{Baseline, Probe};
use window::Window;

/// The largest limit.
pub const MAX_LIMIT: u32 = 1_000_000;

/// The growth in a window until the first sign of a queue, as TCP's slow start (V. Jacobson, "Congestion Avoidance and
/// Control", 1988).
const RISE: f64 = 1.5;

/// The standard error of a window's mean round trip that is good enough to change the limit by.
const PRECISION: f64 = 0.04;

/// And to judge many windows by.
const PRECISION_OF_PROBES: f64 = 0.03;

/// A window ends after so many times the limit even so: where round trips vary by more than their mean, a change in
/// time is worth more than an exact one.
const MOST: u32 = 4;

/// A parameter of an adaptive limit that is out of its range.
#[derive(Debug, Clone, Copy, PartialEq, thiserror::Error)]
#[error("{name} is {value}: {min} to {max} are allowed")]
pub struct InvalidParameter {
    /// The name of the field.
    pub name: &'static str,
    /// What was given.
    pub value: f64,
    /// The smallest value allowed.
    pub min: f64,
    /// The largest value allowed.
    pub max: f64,
}

/// What a limit may be, in requests in flight: 1 <= `minimum` <= `initial` <= `maximum` <= [`MAX_LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// Never less, not even while probing.
    pub minimum: u32,
    /// Never more.
    pub maximum: u32,
    /// The limit before anything is known.
    pub initial: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { minimum: 1, maximum: 1000, initial: 20 }
    }
}

/// Which algorithm, with its parameters.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Kind {
    /// Additive increase, multiplicative decrease.
    Aimd(Aimd),
    /// Keeps a small queue, by the difference to the round trip without one.
    Vegas(Vegas),
    /// Follows the ratio of the long-term to the current round trip.
    Gradient2(Gradient2),
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Outcome {
    /// Answered: its round trip tells of the queue.
    Success,
    /// Lost to overload: a timeout, a refusal (503), a reset. Its round trip is not used.
    Dropped,
    /// Says nothing of the server's load, as an answer from elsewhere or a client that left.
    Ignored,
}

/// One window, as an algorithm sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Summary {
    /// The mean round trip of the window, microseconds, at least 1. None if every request was dropped.
    pub round_trip_us: Option<f64>,
    /// The round trip without a queue, microseconds, at least 1.
    pub baseline_us: f64,
    /// More than one request in a hundred was dropped.
    pub dropped: bool,
    /// At some time in the window at least half of the limit was in use. If not, the limit was not what held the
    /// traffic back, and an algorithm must not raise it.
    pub saturated: bool,
}

/// A limit of requests in flight that adapts to the server. No allocation; about 200 bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Adaptive {
    kind: Kind,
    bounds: Bounds,
    limit: f64,
    window: Window,
    baseline: Baseline,
    probe: Option<Probe>,
    /// Until the first window that gives no reason to grow.
    rising: bool,
}

impl Adaptive {
    /// Checks the bounds and the algorithm's parameters.
    pub fn new(kind: Kind, bounds: Bounds) -> Result<Self, InvalidParameter> {
        let Bounds { minimum, maximum, initial } = bounds;
        within("minimum", minimum, 1, MAX_LIMIT)?;
        within("maximum", maximum, minimum, MAX_LIMIT)?;
        within("initial", initial, minimum, maximum)?;
        match &kind {
            Kind::Aimd(aimd) => aimd.check()?,
            Kind::Vegas(vegas) => vegas.check()?,
            Kind::Gradient2(gradient2) => gradient2.check()?,
        }
        Ok(Self {
            kind,
            bounds,
            limit: f64::from(initial),
            window: Window::default(),
            baseline: Baseline::default(),
            probe: None,
            rising: true,
        })
    }

    /// How many requests may be in flight now, within the bounds.
    #[must_use]
    pub fn limit(&self) -> u32 {
        // Both are within the bounds, so neither is negative nor beyond u32.
        self.probe.as_ref().map_or(self.limit, |probe| probe.level) as u32
    }

    /// Whether the limit is lowered for some round trips to measure the round trip without a queue.
    #[must_use]
    pub fn probing(&self) -> bool {
        self.probe.is_some()
    }

    /// The round trip without a queue as known now, in microseconds; None before the first window.
    #[must_use]
    pub fn baseline_us(&self) -> Option<u64> {
        self.baseline.us().map(|us| us as u64)
    }

    /// Takes the end of one request, at `now_us`. `in_flight_at_start` counts those in flight when it started, with
    /// itself. Any numbers are borne; a clock that went back starts a new window.
    pub fn sample(&mut self, now_us: u64, round_trip_us: u64, in_flight_at_start: u32, outcome: Outcome) {
        let dropped = match outcome {
            Outcome::Ignored => return,
            Outcome::Dropped => true,
            Outcome::Success => self.kind.too_late(round_trip_us),
        };
        if now_us < self.window.opened_us {
            self.window = Window::open(now_us);
        }
        let limit = self.limit();
        if !self.window.settles(now_us.saturating_sub(round_trip_us), limit) {
            return;
        }
        let answer = (!dropped).then(|| self.baseline.clip(round_trip_us));
        self.window.add(answer, in_flight_at_start);
        let (precision, most) = match self.probe {
            None => (PRECISION, limit * MOST),
            Some(_) => (PRECISION_OF_PROBES, limit.max(window::FEWEST / 2) * MOST),
        };
        if self.window.is_full(limit, precision, most) {
            self.close(now_us, round_trip_us);
        }
    }

    fn close(&mut self, now_us: u64, salt: u64) {
        let window = std::mem::replace(&mut self.window, Window::open(now_us));
        let (mean, saturated) = (window.mean_us(), window.peak >= self.limit().div_ceil(2));
        self.baseline.count_down(window.count);
        if let Some(probe) = self.probe {
            self.go_on_probing(probe, mean, window.error_us(), now_us ^ salt);
            return;
        }
        // A first mean is a baseline, and nothing yet to compare with it; drops need no baseline.
        let first = self.baseline.us().is_none() && mean.is_some();
        let baseline_us =
            self.baseline.after_window(mean, window.error_us(), self.kind.drift()).unwrap_or(1.0);
        let limit = self.limit;
        if !first {
            // What is not known well enough to cut by is taken for no queue.
            let doubt = |mean: f64| 2.0 * (window.error_us() - PRECISION * mean).max(0.0);
            let round_trip_us = mean.map(|mean| (mean - doubt(mean)).max(mean.min(baseline_us)));
            let seen = Summary { round_trip_us, baseline_us, dropped: window.dropped(), saturated };
            let next = self.kind.next(self.limit, &seen);
            self.rising &= next > self.limit || !saturated;
            self.limit = self.bounded(if self.rising && saturated { self.limit * RISE } else { next });
        }
        // Without load to push the limit a probe would measure nothing that a window does not.
        if let Some(mean) = mean
            && saturated
            && self.kind.probe_every() > 0
            && self.baseline.is_due(mean, limit, self.limit)
        {
            self.probe = Some(Probe { level: self.bounded(self.limit / 2.0), above_us: mean });
        }
    }

    fn go_on_probing(&mut self, probe: Probe, mean: Option<f64>, error_us: f64, salt: u64) {
        let lower = self.bounded(probe.level / 2.0);
        self.probe = mean.and_then(|mean| probe.descend(mean, lower));
        if self.probe.is_none() {
            // The round trip fell from four times this level to two times, if the probe came so far: a queue.
            self.limit = self.bounded(self.limit.min(probe.level * 4.0));
            self.baseline.after_probe(mean, error_us, self.limit, self.kind.probe_every(), salt);
        }
    }

    fn bounded(&self, limit: f64) -> f64 {
        limit.clamp(f64::from(self.bounds.minimum), f64::from(self.bounds.maximum))
    }
}

impl Kind {
    fn next(&self, limit: f64, seen: &Summary) -> f64 {
        match self {
            Self::Aimd(aimd) => aimd.next(limit, seen),
            Self::Vegas(vegas) => vegas.next(limit, seen),
            Self::Gradient2(gradient2) => gradient2.next(limit, seen),
        }
    }

    fn too_late(&self, round_trip_us: u64) -> bool {
        matches!(self, Self::Aimd(aimd) if round_trip_us > aimd.timeout_us)
    }

    fn probe_every(&self) -> u32 {
        match self {
            Self::Aimd(Aimd { probe_every, .. })
            | Self::Vegas(Vegas { probe_every, .. })
            | Self::Gradient2(Gradient2 { probe_every, .. }) => *probe_every,
        }
    }

    /// The share by which the baseline follows each window upwards.
    fn drift(&self) -> f64 {
        match self {
            Self::Gradient2(gradient2) => gradient2.drift(),
            Self::Aimd(_) | Self::Vegas(_) => 0.0,
        }
    }
}

/// NaN is in no range.
fn within(
    name: &'static str,
    value: impl Into<f64>,
    min: impl Into<f64>,
    max: impl Into<f64>,
) -> Result<(), InvalidParameter> {
    let (value, min, max) = (value.into(), min.into(), max.into());
    if (min..=max).contains(&value) { Ok(()) } else { Err(InvalidParameter { name, value, min, max }) }
}
