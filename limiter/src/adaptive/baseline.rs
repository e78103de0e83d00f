//! The round trip without a queue.
//!
//! Windows can lower the estimate. Only probes raise it, and for Gradient2 a slow drift, because under load
//! every window contains some queue. A probe halves the limit, and halves it again as long as that shortens
//! the round trip by a fifth. BBR's ProbeRTT drains the pipe for the same purpose (Cardwell et al., "BBR:
//! Congestion-Based Congestion Control", 2016), and Envoy's gradient controller pins the limit to measure its
//! minRTT.

/// Most baselines that one round trip counts as: one request that took minutes must not ruin the limit. No
/// algorithm here distinguishes four baselines from more.
const CLIP: f64 = 4.0;

/// The longest baseline: an hour. It keeps the sums in range.
const LONGEST_US: f64 = 3.6e9;

/// Share of the baseline by which a mean has to differ to be significant. It also has to differ by four
/// standard errors; a smaller difference may be noise.
const SIGNIFICANT: f64 = 0.1;

/// A probe continues while halving the limit brings the round trip below this share of the previous one.
const SHORTER: f64 = 0.8;

/// After the first probe, and after one with a significant result, the next one follows this many times
/// sooner. Then the interval doubles with each probe.
const SOONER: u32 = 8;

/// Share of an earlier limit below which the current one is much smaller.
const MUCH_SMALLER: f64 = 0.8;

/// The estimate, and the time of the next probe.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Baseline {
    /// The estimate in microseconds; 0 before the first window.
    us: f64,
    /// Number of samples until the next probe.
    left: u64,
    /// Number of round trips from the last probe to the next.
    interval: u32,
    /// Limit and mean round trip before the latest decreases. If the limit has become much smaller but the
    /// round trip has not, the difference to the baseline is not a queue, and the baseline is wrong.
    before_decrease: (f64, f64),
    /// Whether the baseline was found wrong, and no probe has ended since.
    doubted: bool,
}

/// A running probe.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Probe {
    /// Limit during the probe.
    pub(super) level: f64,
    /// Mean round trip at twice the level.
    pub(super) above_us: f64,
}

impl Probe {
    /// Returns the probe at the next level, if that is lower and this level, with a mean of `mean_us`, still
    /// shortened the round trip.
    pub(super) fn descend(&self, mean_us: f64, lower: f64) -> Option<Self> {
        (lower < self.level && mean_us < self.above_us * SHORTER)
            .then_some(Self { level: lower, above_us: mean_us })
    }
}

impl Baseline {
    /// Returns the estimate in microseconds; `None` before the first window.
    pub(super) fn us(&self) -> Option<f64> {
        (self.us > 0.0).then_some(self.us)
    }

    /// Returns the round trip, limited to [`CLIP`] baselines.
    pub(super) fn clip(&self, round_trip_us: u64) -> f64 {
        let most = if self.us > 0.0 { (self.us * CLIP).min(LONGEST_US) } else { LONGEST_US };
        (round_trip_us as f64).clamp(1.0, most.max(1.0))
    }

    /// Brings the next probe nearer by this many samples.
    pub(super) fn count_down(&mut self, samples: u32) {
        self.left = self.left.saturating_sub(u64::from(samples));
    }

    /// Returns the smallest difference from the baseline that is significant.
    fn noise_us(&self, error_us: f64) -> f64 {
        (self.us * SIGNIFICANT).max(error_us * 4.0)
    }

    /// Reports whether to probe now, because it is time or because decreases do not help. Called between a
    /// window at `limit` and one at `next`.
    pub(super) fn is_due(&mut self, mean_us: f64, limit: f64, next: f64) -> bool {
        let (from, before_us) = self.before_decrease;
        let is_much_smaller = limit < from * MUCH_SMALLER;
        let helped = mean_us < before_us * (1.0 + MUCH_SMALLER) / 2.0;
        if is_much_smaller || next >= limit || mean_us > before_us * (1.0 + SIGNIFICANT) {
            self.before_decrease = (limit, mean_us);
        }
        self.doubted |= is_much_smaller && !helped;
        self.left == 0 || self.doubted
    }

    /// Takes the mean of a window at the full limit, with its standard error. Returns the new baseline.
    pub(super) fn after_window(&mut self, mean_us: Option<f64>, error_us: f64, drift: f64) -> Option<f64> {
        match mean_us {
            Some(mean) if self.us == 0.0 => self.us = mean,
            // Not the minimum of all means, which noise would lower without end.
            Some(mean) if mean < self.us - self.noise_us(error_us) => self.us = (self.us + mean) / 2.0,
            Some(mean) if mean > self.us => self.us += (mean - self.us) * drift,
            _ => {}
        }
        self.us()
    }

    /// Takes the mean at the lowest level of a probe, with its standard error, and schedules the next probe.
    ///
    /// That is `every` round trips at `limit` later, or up to half of that sooner, by the bits of `salt`:
    /// otherwise pods that once probed together would always do so. A significant result is verified sooner.
    pub(super) fn after_probe(
        &mut self,
        mean_us: Option<f64>,
        error_us: f64,
        limit: f64,
        every: u32,
        salt: u64,
    ) {
        // A later probe is one of many measurements, so it weighs less.
        let weight = if self.interval < every / 2 { 0.5 } else { 0.25 };
        self.interval = self.interval.saturating_mul(2);
        if let Some(mean) = mean_us {
            if !self.doubted && (mean - self.us).abs() < self.noise_us(error_us) {
                self.us += (mean - self.us) * weight;
            } else {
                self.us = mean;
                self.interval = 0;
            }
        }
        self.interval = self.interval.clamp(every.div_ceil(SOONER), every);
        self.doubted = false;
        let jitter = (salt.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 40) as f64 / f64::from(1 << 24);
        self.left = (f64::from(self.interval) * limit * (1.0 - jitter / 2.0)) as u64;
    }
}
