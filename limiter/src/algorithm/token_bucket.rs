//! Token bucket and generic cell rate algorithm (GCRA). Both admit a request if the theoretical arrival time
//! is no further ahead than the time of a burst; the bucket is full when it is in the past. They differ in
//! name, and in the default of the burst: all requests of a period, or one.

use super::arrival::{self, Span};
use super::definition::{Checked, Definition};
use super::shape::Shape;
use crate::decision::Decision;
use crate::error::RateError;
use crate::number::{MAX_COUNT, MAX_PERIOD_MS, ranged};
use crate::quota::Quota;
use crate::record::{Record, Tag};

ranged! {
    /// Number of requests that a full bucket admits immediately, 1 to [`MAX_COUNT`].
    Burst(u64), new(1..=MAX_COUNT),
    /// Returns the number.
    get
}

/// A bucket that fills at a constant rate.
#[derive(Debug, Clone, Copy)]
pub(crate) struct TokenBucket {
    pub(crate) burst: Burst,
    /// Whether the policy calls it `gcra`.
    pub(crate) is_gcra: bool,
}

impl Definition for TokenBucket {
    /// Checks that the bucket refills within the longest period.
    fn validate(self, quota: Quota) -> Result<(), RateError> {
        // burst / requests * period, without the division.
        let refill = u128::from(self.burst.get()) * u128::from(quota.period.millis());
        if refill > u128::from(quota.requests.get().max(1)) * u128::from(MAX_PERIOD_MS) {
            Err(RateError::SlowBucket(self.burst.get()))
        } else {
            Ok(())
        }
    }

    #[inline]
    fn tag(self, quota: Quota) -> Tag {
        arrival::tag(quota)
    }

    #[inline]
    fn roll(self, quota: Quota, stored: Record, now: u64) -> (Record, u64) {
        (arrival::roll(quota, stored, now, self.size(quota).ceil()), now)
    }

    /// Returns the number of requests that the bucket lacks.
    #[inline]
    fn used(self, quota: Quota, record: &Record, now: u64) -> u64 {
        let burst = self.burst.get();
        if quota.requests.get() == 0 {
            return 0;
        }
        burst - arrival::tokens(quota, record, self.size(quota), now).min(burst)
    }

    #[inline]
    fn has_room(self, quota: Quota, record: &Record, now: u64, cost: u64) -> bool {
        quota.requests.get() > 0 && arrival::has_room(quota, record, now, cost, self.size(quota))
    }

    #[inline]
    fn charge(self, quota: Quota, record: &mut Record, now: u64, cost: u64) {
        arrival::charge(quota, record, now, cost);
    }

    fn undo_charge(self, quota: Quota, record: &mut Record, _now: u64, cost: u64) {
        arrival::undo_charge(quota, record, cost);
    }

    fn settle(self, quota: Quota, record: &mut Record, _now: u64, _charged: u64, delta: i64) {
        arrival::settle(quota, record, delta, |_| true);
    }

    #[inline]
    fn decide(self, quota: Quota, record: &Record, checked: Checked) -> Decision {
        let Checked { now, cost, has_room, .. } = checked;
        let ahead = arrival::ahead(record, now);
        let decision = Decision { reset: ahead.ceil(), ..Decision::new(quota, has_room) };
        if quota.requests.get() == 0 {
            return decision;
        }
        let retry_after = || arrival::retry_after(quota, ahead, cost, self.size(quota));
        Decision {
            remaining: self.burst.get() - self.used(quota, record, now),
            retry_after: if has_room { None } else { retry_after() },
            ..decision
        }
    }

    /// Returns the capacity and its rest, the time of the cost and its rest, and how far ahead the arrival
    /// time may be.
    fn script_arguments(self, quota: Quota, _key: u128, cost: u64) -> [u64; 5] {
        let size = self.size(quota);
        let capacity = (quota.requests.get() > 0).then_some(size);
        arrival::script_arguments(quota, cost.max(1), capacity, size.ceil())
    }

    /// Returns the same arguments, but 0 and 0 instead of the capacity.
    fn settlement_script_arguments(self, quota: Quota, _key: u128, amount: u64) -> [u64; 5] {
        arrival::script_arguments(quota, amount.max(1), None, self.size(quota).ceil())
    }

    fn shape(self) -> Option<Shape> {
        Some(Shape::Bucket(self.burst.get()))
    }

    fn capacity(self, _quota: Quota) -> u64 {
        self.burst.get()
    }

    /// Leases for at most a twentieth of the period and a quarter of the time in which the bucket refills.
    /// That share of the rate can come on top of a burst.
    fn longest_lease(self, quota: Quota) -> Option<u64> {
        Some((quota.period.micros() / 20).min(quota.refill_time(self.burst.get()) / 4))
    }

    fn freed_after(self, quota: Quota, used: f64, _decision: &Decision, micros: u64) -> f64 {
        (quota.requests.get() as f64 * (micros as f64 / quota.period.micros() as f64)).min(used)
    }

    fn least_still_used(self, quota: Quota, used: u64, at: u64, now: u64) -> u64 {
        quota.least_left(used, now.saturating_sub(at), quota.period.micros())
    }

    fn description(self, quota: Quota) -> String {
        match self.burst.get() {
            burst if burst == quota.requests.get() => format!("admits {quota}"),
            burst => format!("admits {quota}, in bursts of up to {burst}"),
        }
    }

    fn notes(self, quota: Quota) -> Vec<String> {
        let (name, default) =
            if self.is_gcra { ("gcra", 1) } else { ("tokenBucket", quota.requests.get().max(1)) };
        let burst = self.burst.get();
        vec![if burst == default { name.into() } else { format!("{name} burst {burst}") }]
    }
}

impl TokenBucket {
    /// Returns the time of a burst, the furthest that the arrival time can be ahead.
    #[inline]
    fn size(self, quota: Quota) -> Span {
        arrival::time_of(quota, self.burst.get())
    }
}
