//! The quota of a rate: the numbers that all algorithms share. Its methods count the soft extra, which only
//! windows have.

use std::fmt::{Display, Formatter};

use crate::duration::Words;
use crate::number::{MAX_COUNT, Period, Requests};
use crate::record::Record;
use crate::soft::Soft;

/// A number of requests per period.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Quota {
    /// Number of requests.
    pub(crate) requests: Requests,
    /// Length of the period.
    pub(crate) period: Period,
    /// Extra above the number; `None` for a hard limit.
    pub(crate) soft: Option<Soft>,
    /// Whether denied requests count too.
    pub(crate) count_denied: bool,
}

impl Quota {
    /// Returns the most requests that may be admitted per period: the number, plus the extra.
    #[inline]
    pub(crate) fn ceiling(&self) -> u64 {
        let requests = self.requests.get();
        let extra = self.soft.map_or(0, |soft| requests * u64::from(soft.over_percent()) / 100);
        (requests + extra).min(MAX_COUNT)
    }

    /// Returns the time in which `capacity` requests come back, in microseconds.
    pub(crate) fn refill_time(&self, capacity: u64) -> u64 {
        let periods = capacity as f64 / self.requests.get().max(1) as f64;
        (self.period.micros() as f64 * periods) as u64
    }

    /// Returns the least that is left of `used` after `passed` microseconds, if the whole number comes back
    /// evenly in `refill_time` microseconds.
    pub(crate) fn least_left(&self, used: u64, passed: u64, refill_time: u64) -> u64 {
        let back = u128::from(self.requests.get()) * u128::from(passed) / u128::from(refill_time.max(1));
        used.saturating_sub(u64::try_from(back).unwrap_or(u64::MAX).saturating_add(1))
    }

    /// Reports whether the usage `after` a charge is within the number or the extra.
    #[inline]
    pub(crate) fn has_room(&self, record: &Record, now: u64, after: u64) -> bool {
        let is_within_extra = |soft| after <= self.ceiling() && self.is_open(soft, record, now / 1000);
        after <= self.requests.get() || self.soft.is_some_and(is_within_extra)
    }

    /// Records a charge that took the usage above the number, in the window that ends at `window_end`
    /// (milliseconds).
    #[inline]
    pub(crate) fn mark_overrun(&self, record: &mut Record, now: u64, window_end: u64) {
        let (millis, over) = (now / 1000, record.overrun);
        if over.since == 0 || over.since > millis || millis >= over.last + self.period.millis() {
            record.overrun.since = millis;
        }
        record.overrun.last = window_end;
    }

    /// Returns the microseconds until a window has room for `cost`. `falls_to` returns the instant, in
    /// milliseconds, from which at most that many requests are used.
    #[inline]
    pub(crate) fn retry_after(
        &self,
        record: &Record,
        now: u64,
        cost: u64,
        falls_to: impl Fn(u64) -> u64,
    ) -> Option<u64> {
        let has_room_at = |limit: u64| limit.checked_sub(cost).map(&falls_to);
        let hard = has_room_at(self.requests.get());
        let extra = self.soft.and_then(|soft| {
            let at = has_room_at(self.ceiling())?;
            let reopens_at = record.overrun.last + self.period.millis();
            Some(if self.is_open(soft, record, at) { at } else { at.max(reopens_at) })
        });
        let at = hard.into_iter().chain(extra).min()?;
        Some((at * 1000).saturating_sub(now))
    }

    /// Returns the arguments of windows for the script: `first`, the ceiling, the duration of the extra in milliseconds
    /// or 0, and 1 if denied requests count.
    pub(crate) fn script_arguments(&self, first: u64) -> [u64; 5] {
        [first, self.ceiling(), self.soft.map_or(0, Soft::millis), u64::from(self.count_denied), 0]
    }

    /// Reports whether the extra is available at `millis`.
    #[inline]
    fn is_open(&self, soft: Soft, record: &Record, millis: u64) -> bool {
        record.overrun.since == 0
            || millis < record.overrun.since + soft.millis()
            || millis >= record.overrun.last + self.period.millis()
    }
}

/// Writes `5 requests per minute`, and the extra: `, or 6 for 30 seconds`.
impl Display for Quota {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        let requests = self.requests.get();
        let noun = if requests == 1 { "request" } else { "requests" };
        write!(f, "{requests} {noun} per {}", Words(self.period.millis()).per())?;
        match self.soft {
            Some(soft) => write!(f, ", or {} for {}", self.ceiling(), Words(soft.millis())),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
