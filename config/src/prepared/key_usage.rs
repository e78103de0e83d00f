//! How much of a limit's maximum number of keys is in use, as far as the responses of the store show it.

use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::policy::LimitKind;

/// Number of responses whose mean is the usage. Each tells only about one of the store's partitions, which differ by
/// chance.
const RESPONSES: u32 = 16;
/// Part of the maximum above which the usage is reported, and below which it no longer is.
const HIGH: f64 = 0.8;
const LOW: f64 = 0.6;
/// Shortest time for which the usage is believed without a further response.
const SHORTEST: Duration = Duration::from_secs(60);

/// A mean of the latest usages. Keys are only counted when they are new or in a new window; without such a response
/// for twice the longest period, no key is left.
#[derive(Debug)]
pub struct KeyUsageMeter {
    kept_for: Duration,
    state: Mutex<MeterState>,
}

#[derive(Debug, Default)]
struct MeterState {
    mean: f64,
    responses: u32,
    latest: Option<Instant>,
    is_high: bool,
}

impl KeyUsageMeter {
    pub(super) fn new(kind: &LimitKind) -> Self {
        let longest = match kind {
            LimitKind::Rates(rates) => rates.all().map(|rate| rate.period.millis()).max(),
            LimitKind::Slots(_) | LimitKind::Adaptive(_) => None,
        };
        let kept_for = Duration::from_millis(2 * longest.unwrap_or(0)).max(SHORTEST);
        Self { kept_for, state: Mutex::default() }
    }

    /// Records the part of the maximum that a response shows, in thousandths; `None` if a new key was refused.
    pub fn observe(&self, used: Option<u16>, now: Instant) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.expire(self.kept_for, now);
        let used = used.map_or(1.0, |used| f64::from(used) / 1000.0);
        state.responses = (state.responses + 1).min(RESPONSES);
        state.mean += (used - state.mean) / f64::from(state.responses);
        state.latest = Some(now);
        if state.responses == RESPONSES {
            state.is_high = state.mean > if state.is_high { LOW } else { HIGH };
        }
    }

    /// Returns the part of the maximum that is in use, from 0 to 1.
    #[must_use]
    pub fn share(&self, now: Instant) -> f64 {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.expire(self.kept_for, now);
        state.mean
    }

    /// Reports whether the limit is nearly full: above 80 % of its maximum, and after that not below 60 % yet.
    #[must_use]
    pub fn is_high(&self, now: Instant) -> bool {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.expire(self.kept_for, now);
        state.is_high
    }
}

impl MeterState {
    fn expire(&mut self, kept_for: Duration, now: Instant) {
        if self.latest.is_some_and(|latest| now.saturating_duration_since(latest) > kept_for) {
            *self = Self::default();
        }
    }
}

#[cfg(test)]
mod tests {
    use sluice_limiter::{Algorithm, Period, Rate, Requests};

    use super::*;
    use crate::policy::Rates;

    fn meter() -> KeyUsageMeter {
        let (requests, period) = (Requests::new(10).unwrap(), Period::from_millis(3_600_000).unwrap());
        let base = vec![Rate::new(requests, period, Algorithm::SLIDING_WINDOW).unwrap()];
        KeyUsageMeter::new(&LimitKind::Rates(Box::new(Rates { base, ..Rates::default() })))
    }

    #[test]
    fn a_limit_is_reported_above_80_percent_until_it_is_below_60() {
        let (meter, now) = (meter(), Instant::now());
        let observe = |used, times| (0..times).for_each(|_| meter.observe(Some(used), now));
        observe(900, 15);
        assert!(!meter.is_high(now), "one partition proves nothing");
        observe(900, 1);
        assert!(meter.is_high(now) && (meter.share(now) - 0.9).abs() < 0.001);
        observe(650, 200);
        assert!(meter.is_high(now));
        observe(550, 200);
        assert!(!meter.is_high(now));
        observe(790, 200);
        assert!(!meter.is_high(now));
        (0..200).for_each(|_| meter.observe(None, now));
        assert!(meter.is_high(now) && meter.share(now) > 0.99);
    }

    #[test]
    fn a_limit_without_new_keys_is_empty_after_two_periods() {
        let (meter, now) = (meter(), Instant::now());
        (0..20).for_each(|_| meter.observe(None, now));
        let (before, after) = (now + Duration::from_secs(7200), now + Duration::from_secs(7201));
        assert!(meter.is_high(before));
        assert!(!meter.is_high(after) && meter.share(after) == 0.0);
    }
}
