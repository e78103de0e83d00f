//! The adaptive limit.

use super::algorithm::AdaptiveAlgorithm;
use super::baseline::{Baseline, Probe};
use super::parameter::{InvalidParameter, within};
use super::sample_window::{FEWEST, SampleWindow, WindowSummary};

/// The largest limit.
pub const MAX_LIMIT: u32 = 1_000_000;

/// Growth in each window until the first sign of a queue, as in TCP's slow start (V. Jacobson, "Congestion
/// Avoidance and Control", 1988).
const SLOW_START_GROWTH: f64 = 1.5;

/// Standard error of a window's mean round trip, as a share of it, that is good enough to change the limit
/// by.
const PRECISION: f64 = 0.04;

/// Standard error that is good enough for a probe, which sets the baseline of many windows.
const PROBE_PRECISION: f64 = 0.03;

/// A window ends after this many times the limit even if its mean is not precise. If round trips vary by more
/// than their mean, a change in time is worth more than an exact one.
const MOST_SAMPLES: u32 = 4;

/// The range of a limit, in requests in flight: 1 <= `minimum` <= `initial` <= `maximum` <= [`MAX_LIMIT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Bounds {
    /// The lowest limit, also while probing.
    pub minimum: u32,
    /// The highest limit.
    pub maximum: u32,
    /// The limit before the first window.
    pub initial: u32,
}

impl Default for Bounds {
    fn default() -> Self {
        Self { minimum: 1, maximum: 1000, initial: 20 }
    }
}

/// The end of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SampleOutcome {
    /// Answered: its round trip includes the time in the queue.
    Success,
    /// Lost to overload: a timeout, a refusal (503) or a reset. Its round trip is not used.
    Dropped,
    /// Unrelated to the server's load, for example because the client left.
    Ignored,
}

/// A limit of requests in flight that adapts to the server. It allocates nothing and takes about 300 bytes.
#[derive(Debug, Clone, PartialEq)]
pub struct Adaptive {
    algorithm: AdaptiveAlgorithm,
    bounds: Bounds,
    limit: f64,
    window: SampleWindow,
    baseline: Baseline,
    probe: Option<Probe>,
    /// Ends with the first saturated window that gives no reason to grow.
    slow_start: bool,
}

impl Adaptive {
    /// Checks the bounds and the algorithm's parameters.
    pub fn new(algorithm: AdaptiveAlgorithm, bounds: Bounds) -> Result<Self, InvalidParameter> {
        let Bounds { minimum, maximum, initial } = bounds;
        within("minimum", minimum, 1, MAX_LIMIT)?;
        within("maximum", maximum, minimum, MAX_LIMIT)?;
        within("initial", initial, minimum, maximum)?;
        algorithm.check()?;
        Ok(Self {
            algorithm,
            bounds,
            limit: f64::from(initial),
            window: SampleWindow::default(),
            baseline: Baseline::default(),
            probe: None,
            slow_start: true,
        })
    }

    /// Returns how many requests may be in flight now, within the bounds.
    #[must_use]
    pub fn limit(&self) -> u32 {
        // Both are within the bounds, so neither is negative nor beyond u32.
        self.probe.as_ref().map_or(self.limit, |probe| probe.level) as u32
    }

    /// Reports whether the limit is lowered at the moment to measure the round trip without a queue.
    #[must_use]
    pub fn probing(&self) -> bool {
        self.probe.is_some()
    }

    /// Returns the current estimate of the round trip without a queue, in microseconds; `None` before the
    /// first window.
    #[must_use]
    pub fn baseline_us(&self) -> Option<u64> {
        self.baseline.us().map(|us| us as u64)
    }

    /// Takes the end of one request at `now_us`. `in_flight_at_start` is the number of requests in flight
    /// when it started, including itself. `client` is a hash of the client, whose dropped requests count as one in a window. Any
    /// numbers are accepted; a clock that went back starts a new window.
    pub fn sample(
        &mut self,
        now_us: u64,
        round_trip_us: u64,
        in_flight_at_start: u32,
        outcome: SampleOutcome,
        client: u64,
    ) {
        let dropped = match outcome {
            SampleOutcome::Ignored => return,
            SampleOutcome::Dropped => true,
            SampleOutcome::Success => self.algorithm.is_too_late(round_trip_us),
        };
        if now_us < self.window.opened_us {
            self.window = SampleWindow::open(now_us);
        }
        let limit = self.limit();
        if !self.window.settles(now_us.saturating_sub(round_trip_us), limit) {
            return;
        }
        let end = if dropped { Err(client) } else { Ok(self.baseline.clip(round_trip_us)) };
        self.window.add(end, in_flight_at_start);
        let (precision, most) = match self.probe {
            None => (PRECISION, limit * MOST_SAMPLES),
            Some(_) => (PROBE_PRECISION, limit.max(FEWEST / 2) * MOST_SAMPLES),
        };
        if self.window.is_full(limit, precision, most) {
            self.close_window(now_us, round_trip_us);
        }
    }

    fn close_window(&mut self, now_us: u64, salt: u64) {
        let window = std::mem::replace(&mut self.window, SampleWindow::open(now_us));
        let (mean, saturated) = (window.mean_us(), window.peak >= self.limit().div_ceil(2));
        self.baseline.count_down(window.count);
        if let Some(probe) = self.probe {
            self.continue_probe(probe, mean, window.error_us(), now_us ^ salt);
            return;
        }
        // The first mean becomes the baseline, so there is nothing to compare it with yet. Drops need no
        // baseline.
        let first = self.baseline.us().is_none() && mean.is_some();
        let baseline_us =
            self.baseline.after_window(mean, window.error_us(), self.algorithm.drift()).unwrap_or(1.0);
        let limit = self.limit;
        if !first {
            self.change_limit(&window, baseline_us, saturated);
        }
        // Without enough load to reach the limit, a probe would measure the same as a window.
        if let Some(mean) = mean
            && saturated
            && self.algorithm.probe_every() > 0
            && self.baseline.is_due(mean, limit, self.limit)
        {
            self.probe = Some(Probe { level: self.bounded(self.limit / 2.0), above_us: mean });
        }
    }

    fn change_limit(&mut self, window: &SampleWindow, baseline_us: f64, saturated: bool) {
        // A mean that is not precise enough to lower the limit counts as no queue.
        let doubt = |mean: f64| 2.0 * (window.error_us() - PRECISION * mean).max(0.0);
        let round_trip_us = window.mean_us().map(|mean| (mean - doubt(mean)).max(mean.min(baseline_us)));
        let summary = WindowSummary { round_trip_us, baseline_us, dropped: window.dropped(), saturated };
        let next = self.algorithm.next(self.limit, &summary);
        self.slow_start &= next > self.limit || !saturated;
        let grows_fast = self.slow_start && saturated;
        self.limit = self.bounded(if grows_fast { self.limit * SLOW_START_GROWTH } else { next });
    }

    fn continue_probe(&mut self, probe: Probe, mean: Option<f64>, error_us: f64, salt: u64) {
        let lower = self.bounded(probe.level / 2.0);
        self.probe = mean.and_then(|mean| probe.descend(mean, lower));
        if self.probe.is_none() {
            // The last halving that shortened the round trip was from four times this level to twice it. So
            // at four times this level there was a queue, which a higher limit would only lengthen.
            self.limit = self.bounded(self.limit.min(probe.level * 4.0));
            self.baseline.after_probe(mean, error_us, self.limit, self.algorithm.probe_every(), salt);
        }
    }

    fn bounded(&self, limit: f64) -> f64 {
        limit.clamp(f64::from(self.bounds.minimum), f64::from(self.bounds.maximum))
    }
}
