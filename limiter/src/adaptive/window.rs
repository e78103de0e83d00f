//! What the answers since the last change of the limit say together.

/// A window is full after as many answers as the limit, but no fewer than this.
pub(super) const FEWEST: u32 = 30;

/// First come the answers that still tell of the limit before, then those that count.
///
/// The first part ends when half a limit of requests that started in this window are answered, which takes one and a
/// half round trips. From then on every answer counts, whenever its request started: to count only those that
/// started in the window would favour the quick ones, which return first.
#[derive(Debug, Clone, PartialEq, Default)]
pub(super) struct Window {
    pub(super) opened_us: u64,
    pub(super) count: u32,
    /// The most requests in flight that any of them saw.
    pub(super) peak: u32,
    settled: u32,
    drops: u32,
    sum: f64,
    squares: f64,
}

impl Window {
    pub(super) fn open(now_us: u64) -> Self {
        Self { opened_us: now_us, ..Self::default() }
    }

    /// Whether an answer to a request that started at `started_us` counts.
    pub(super) fn settles(&mut self, started_us: u64, limit: u32) -> bool {
        let settled = self.settled >= limit.div_ceil(2);
        self.settled += u32::from(!settled && started_us >= self.opened_us);
        settled
    }

    /// `answer_us` is the clipped round trip, None for a request that was dropped.
    pub(super) fn add(&mut self, answer_us: Option<f64>, in_flight: u32) {
        self.count += 1;
        self.peak = self.peak.max(in_flight);
        match answer_us {
            Some(us) => {
                self.sum += us;
                self.squares += us * us;
            }
            None => self.drops += 1,
        }
    }

    /// `precision` is the standard error to reach, as a share of the mean, with `most` answers at most.
    pub(super) fn is_full(&self, limit: u32, precision: f64, most: u32) -> bool {
        self.count >= limit.max(FEWEST)
            && (self.count >= most || self.mean_us().is_none_or(|mean| self.error_us() <= precision * mean))
    }

    /// The standard error of the mean.
    pub(super) fn error_us(&self) -> f64 {
        let answers = f64::from(self.count - self.drops).max(1.0);
        let mean = self.sum / answers;
        ((self.squares / answers - mean * mean).max(0.0) / answers).sqrt()
    }

    pub(super) fn mean_us(&self) -> Option<f64> {
        let answers = self.count - self.drops;
        (answers > 0).then(|| self.sum / f64::from(answers))
    }

    /// A window of thousands should not be condemned by one lost request.
    pub(super) fn dropped(&self) -> bool {
        u64::from(self.drops) * 100 > u64::from(self.count)
    }
}
