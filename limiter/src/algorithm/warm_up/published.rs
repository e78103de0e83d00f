//! `SmoothWarmingUp` as its documentation defines it, in microseconds, independent of the implementation
//! under test.

pub(super) struct Published {
    interval: f64,
    threshold: f64,
    pub(super) maximum: f64,
    slope: f64,
    warm_up: f64,
    pub(super) stored: f64,
    pub(super) next_free: f64,
    /// Cuts waits to whole microseconds, as Guava's casts to `long` do.
    whole: bool,
}

impl Published {
    pub(super) fn cold(interval: f64, warm_up: f64, cold_factor: f64, now: f64, whole: bool) -> Self {
        let cold = interval * cold_factor;
        let threshold = 0.5 * warm_up / interval;
        let maximum = threshold + 2.0 * warm_up / (interval + cold);
        let slope = (cold - interval) / (maximum - threshold);
        Self { interval, threshold, maximum, slope, warm_up, stored: maximum, next_free: now, whole }
    }

    fn cut(&self, micros: f64) -> f64 {
        if self.whole { micros.trunc() } else { micros }
    }

    /// Returns the area under the line between `stored - taken` and `stored` permits.
    fn stored_wait(&self, mut taken: f64) -> f64 {
        let above = self.stored - self.threshold;
        let mut micros = 0.0;
        if above > 0.0 {
            let expensive = above.min(taken);
            let height = |permits: f64| self.interval + permits * self.slope;
            micros = self.cut(expensive * (height(above) + height(above - expensive)) / 2.0);
            taken -= expensive;
        }
        micros + self.cut(self.interval * taken)
    }

    /// Takes `permits`. Returns when they are available, which earlier requests have determined.
    pub(super) fn reserve(&mut self, permits: f64, now: f64) -> f64 {
        if now > self.next_free {
            let cool_down = self.warm_up / self.maximum;
            self.stored = self.maximum.min(self.stored + (now - self.next_free) / cool_down);
            self.next_free = now;
        }
        let available = self.next_free;
        let spent = permits.min(self.stored);
        self.next_free += self.stored_wait(spent) + self.cut((permits - spent) * self.interval);
        self.stored -= spent;
        available
    }
}
