//! The round trip without a queue. Windows lower it; only probes raise it (and, for Gradient2, a slow drift): under
//! load every window has some queue in it. A probe halves the limit, and again as long as that shortens the round
//! trip by a fifth, as BBR's ProbeRTT drains the pipe (Cardwell et al., "BBR: Congestion-Based Congestion Control",
//! 2016) and Envoy's gradient controller pins the limit to measure its minRTT.

/// No round trip counts as more than so many baselines: one request that took minutes must not cost the limit. No
/// algorithm here tells four baselines from more.
const CLIP: f64 = 4.0;

/// The longest baseline: an hour. It bounds the sums.
const LONGEST_US: f64 = 3.6e9;

/// A mean this far from the baseline, and four standard errors, is news; a nearer one may be noise.
const NEWS: f64 = 0.1;

/// A probe goes on while halving the limit brings the round trip below this share of what it was.
const SHORTER: f64 = 0.8;

/// The first probe, and one with news, is followed by one in this share of the time, and that by one in twice that.
const SOONER: u32 = 8;

/// The limit is much smaller at this share of what it was.
const FAR: f64 = 0.8;

/// The estimate, and when to measure it again.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Baseline {
    us: f64,
    /// Samples until the next probe is due.
    left: u64,
    /// Round trips from the last probe to the next.
    interval: u32,
    /// The limit and the mean round trip before the cuts of late: if the limit has become much smaller and the round
    /// trip has not, then what is longer than the baseline is no queue, and the baseline is wrong.
    uncut: (f64, f64),
    /// That was seen, and no probe has ended since.
    doubted: bool,
}

/// A probe under way.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct Probe {
    /// The limit meanwhile.
    pub(super) level: f64,
    /// The mean round trip at twice the level.
    pub(super) above_us: f64,
}

impl Probe {
    /// The probe at the next level, if it is lower and this one, with a mean of `mean_us`, still helped.
    pub(super) fn descend(&self, mean_us: f64, lower: f64) -> Option<Self> {
        (lower < self.level && mean_us < self.above_us * SHORTER)
            .then_some(Self { level: lower, above_us: mean_us })
    }
}

impl Baseline {
    pub(super) fn us(&self) -> Option<f64> {
        (self.us > 0.0).then_some(self.us)
    }

    pub(super) fn clip(&self, round_trip_us: u64) -> f64 {
        let most = if self.us > 0.0 { (self.us * CLIP).min(LONGEST_US) } else { LONGEST_US };
        (round_trip_us as f64).clamp(1.0, most.max(1.0))
    }

    pub(super) fn count_down(&mut self, samples: u32) {
        self.left = self.left.saturating_sub(u64::from(samples));
    }

    fn noise_us(&self, error_us: f64) -> f64 {
        (self.us * NEWS).max(error_us * 4.0)
    }

    /// Whether to probe now: in its turn, or because cuts do not help. After a window at `limit`, and before `next`.
    pub(super) fn is_due(&mut self, mean_us: f64, limit: f64, next: f64) -> bool {
        let (from, before_us) = self.uncut;
        let far = limit < from * FAR;
        let helped = mean_us < before_us * (1.0 + FAR) / 2.0;
        if far || next >= limit || mean_us > before_us * (1.0 + NEWS) {
            self.uncut = (limit, mean_us);
        }
        self.doubted |= far && !helped;
        self.left == 0 || self.doubted
    }

    /// Learns from a window at the full limit, of a mean known to `error_us`; the baseline as of now.
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

    /// Learns from the lowest level of a probe, and sets the next one after `every` round trips at `limit`, or up to
    /// half of that sooner, by the bits of `salt`: pods that probed together once should not do so for ever. News is
    /// checked sooner still.
    pub(super) fn after_probe(
        &mut self,
        mean_us: Option<f64>,
        error_us: f64,
        limit: f64,
        every: u32,
        salt: u64,
    ) {
        // Later probes are one more of many.
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
