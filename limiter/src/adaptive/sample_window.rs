//! The samples since the last change of the limit.

/// The smallest number of responses that fill a window. Otherwise as many as the limit fill it.
pub(super) const FEWEST: u32 = 30;

/// A window of samples, as an algorithm sees it.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WindowSummary {
    /// Mean round trip of the window in microseconds, at least 1. `None` if every request was dropped.
    pub round_trip_us: Option<f64>,
    /// Round trip without a queue in microseconds, at least 1.
    pub baseline_us: f64,
    /// Whether more than one request in a hundred was dropped.
    pub dropped: bool,
    /// Whether at least half of the limit was in use at some time in the window. If not, the limit did not
    /// hold the traffic back, and an algorithm must not raise it.
    pub saturated: bool,
}

/// The samples of one window. First come the responses that were still affected by the limit before it, which
/// do not count, then those that count.
///
/// The first part ends when half a limit of requests that started in this window have been answered, which
/// takes one and a half round trips. From then on every response counts, whenever its request started.
/// Counting only requests that started in the window would favor the quick ones, which return first.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct SampleWindow {
    pub(super) opened_us: u64,
    /// Number of samples that count.
    pub(super) count: u32,
    /// Most requests in flight that any of them saw.
    pub(super) peak: u32,
    /// Responses to requests that started in this window, until the first part ends.
    settled: u32,
    drops: u32,
    sum: f64,
    squares: f64,
}

impl SampleWindow {
    pub(super) fn open(now_us: u64) -> Self {
        Self { opened_us: now_us, ..Self::default() }
    }

    /// Reports whether the response to a request that started at `started_us` counts.
    pub(super) fn settles(&mut self, started_us: u64, limit: u32) -> bool {
        let settled = self.settled >= limit.div_ceil(2);
        self.settled += u32::from(!settled && started_us >= self.opened_us);
        settled
    }

    /// Adds a sample. `round_trip_us` is clipped, and `None` for a request that was dropped.
    pub(super) fn add(&mut self, round_trip_us: Option<f64>, in_flight: u32) {
        self.count += 1;
        self.peak = self.peak.max(in_flight);
        match round_trip_us {
            Some(us) => {
                self.sum += us;
                self.squares += us * us;
            }
            None => self.drops += 1,
        }
    }

    /// Reports whether the mean is known to `precision`, its standard error as a share of the mean. At `most`
    /// samples the window is full in any case.
    pub(super) fn is_full(&self, limit: u32, precision: f64, most: u32) -> bool {
        self.count >= limit.max(FEWEST)
            && (self.count >= most || self.mean_us().is_none_or(|mean| self.error_us() <= precision * mean))
    }

    /// Returns the standard error of the mean.
    pub(super) fn error_us(&self) -> f64 {
        let responses = f64::from(self.count - self.drops).max(1.0);
        let mean = self.sum / responses;
        ((self.squares / responses - mean * mean).max(0.0) / responses).sqrt()
    }

    pub(super) fn mean_us(&self) -> Option<f64> {
        let responses = self.count - self.drops;
        (responses > 0).then(|| self.sum / f64::from(responses))
    }

    /// Reports whether more than one request in a hundred was dropped. One lost request in thousands is no
    /// overload.
    pub(super) fn dropped(&self) -> bool {
        u64::from(self.drops) * 100 > u64::from(self.count)
    }
}
