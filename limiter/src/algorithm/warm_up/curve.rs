//! The cost of stored permits.

/// The constants of `SmoothWarmingUp`, in microseconds and permits.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Curve {
    interval: f64,
    threshold: f64,
    slope: f64,
    /// Time in which one permit is stored.
    pub(crate) cool_down: f64,
}

impl Curve {
    /// Returns the curve from the time of one request, the warm-up period (both in microseconds) and the cold
    /// factor.
    pub(crate) fn new(interval: f64, warm_up: f64, cold_factor: f64) -> Self {
        let cold = interval * cold_factor;
        let threshold = 0.5 * warm_up / interval;
        let maximum = threshold + 2.0 * warm_up / (interval + cold);
        let slope = (cold - interval) / (maximum - threshold);
        Self { interval, threshold, slope, cool_down: warm_up / maximum }
    }

    /// Returns the time of one permit, at `permits` above the threshold (Guava: `permitsToTime`).
    fn time(&self, permits: f64) -> f64 {
        self.interval + permits * self.slope
    }

    /// Returns by how much a request of `cost` delays the next one: the time of the stored permits (Guava:
    /// `storedPermitsToWaitTime`) and of the fresh ones.
    pub(crate) fn wait(&self, stored: f64, cost: f64) -> f64 {
        let mut spend = stored.min(cost);
        let fresh = cost - spend;
        let mut wait = 0.0;
        let above = stored - self.threshold;
        if above > 0.0 {
            let taken = above.min(spend);
            wait = taken * (self.time(above) + self.time(above - taken)) / 2.0;
            spend -= taken;
        }
        wait + self.interval * spend + self.interval * fresh
    }
}
