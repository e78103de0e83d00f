//! Token bucket, generic cell rate algorithm (GCRA) and leaky bucket. They share one state, the *theoretical
//! arrival time* (TAT): when the next request would arrive if all came at the rate's own pace.
//!
//! A request of cost c moves the TAT to `max(TAT, now) + c * T`, with T = period / requests. It is admitted
//! if the TAT is then no further ahead of now than the capacity. After ITU-T I.371 and "Traffic Management
//! Specification Version 4.1" (ATM Forum, 1999), section 4.4.2, virtual scheduling. Turner (1986) describes
//! the same bucket, counted in tokens.
//!
//! - `tokenBucket`: the capacity is `burst * T`; the bucket is full when the TAT is in the past.
//! - `gcra`: the same, with a default burst of 1.
//! - `leakyBucket`: an admitted request is delayed until `max(TAT, now)`, which is at most `maxWait` away. So
//!   requests leave at a constant rate.
//!
//! T is seldom whole: at 3 requests a second it is 333,333 us and a third. So a TAT is whole microseconds and
//! a rest in units of 1 / requests microsecond, which is exact for 3 a second and for ten million.
//!
//! In a [`Record`] `window` holds the milliseconds of the TAT, `previous` its microseconds within them, and
//! `current` the rest.

mod span;

use serde::{Deserialize, Serialize};
use span::Span;

use crate::decision::Decision;
use crate::error::RateError;
use crate::number::{MAX_COUNT, MAX_PERIOD_MS, OutOfRange, Quota, plain_integer, within};
use crate::record::Record;

/// Number of requests that a full bucket admits immediately, 1 to [`MAX_COUNT`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Burst(u64);

plain_integer!(Burst, new, get);

impl Burst {
    /// Checks the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        within(value, 1, MAX_COUNT).map(Self)
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// The longest delay of a request, 0 to [`MAX_PERIOD_MS`] milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct MaxWait(u64);

plain_integer!(MaxWait, from_millis, millis);

impl MaxWait {
    /// Checks the range.
    pub fn from_millis(value: u64) -> Result<Self, OutOfRange> {
        within(value, 0, MAX_PERIOD_MS).map(Self)
    }

    /// Returns the delay in milliseconds.
    #[must_use]
    pub fn millis(self) -> u64 {
        self.0
    }

    /// Returns the delay in microseconds.
    #[must_use]
    pub fn micros(self) -> u64 {
        self.0 * 1000
    }
}

/// The furthest that the TAT may be ahead of now.
#[derive(Debug, Clone, Copy)]
pub(crate) enum BucketSize {
    /// The time of a burst: token bucket and GCRA.
    Burst(Burst),
    /// The longest delay: leaky bucket.
    Delay(MaxWait),
}

/// Checks that the bucket refills within the longest period.
pub(crate) fn validate(size: BucketSize, quota: Quota) -> Result<(), RateError> {
    let BucketSize::Burst(burst) = size else { return Ok(()) };
    // burst / requests * period, without the division.
    let refill = u128::from(burst.get()) * u128::from(quota.period.millis());
    if refill > u128::from(quota.requests.get().max(1)) * u128::from(MAX_PERIOD_MS) {
        Err(RateError::SlowBucket(burst.get()))
    } else {
        Ok(())
    }
}

/// Returns the record at `now`. Corrects what was stored by a rate of another number or by another clock.
pub(crate) fn roll(size: BucketSize, quota: Quota, mut record: Record, now: u64) -> Record {
    if record.current >= quota.requests.get().max(1) {
        // The rest counts in units of another number: round it up.
        let micros = tat(&record).saturating_add(1);
        set_tat(&mut record, micros, 0);
    }
    let latest = now + furthest(size, quota);
    if tat(&record) > latest {
        set_tat(&mut record, latest, 0);
    }
    record
}

/// Returns the number of requests that the bucket lacks; for a leaky bucket whether a request would be
/// delayed.
pub(crate) fn used(size: BucketSize, quota: Quota, record: &Record, now: u64) -> u64 {
    match size {
        BucketSize::Burst(_) if quota.requests.get() == 0 => 0,
        BucketSize::Burst(burst) => {
            burst.get() - tokens(quota, record, time_of(quota, burst.get()), now).min(burst.get())
        }
        BucketSize::Delay(_) => u64::from(ahead(record, now) > Span::ZERO),
    }
}

/// Reports whether the bucket has room for `cost`.
#[inline]
pub(crate) fn has_room(size: BucketSize, quota: Quota, record: &Record, now: u64, cost: u64) -> bool {
    capacity(size, quota, cost).is_some_and(|capacity| {
        ahead(record, now).plus(time_of(quota, cost), quota.requests.get()) <= capacity
    })
}

/// Moves the TAT by the time of `cost`.
#[inline]
pub(crate) fn charge(quota: Quota, record: &mut Record, now: u64, cost: u64) {
    if cost > 0 {
        let after = ahead(record, now).plus(time_of(quota, cost), quota.requests.get());
        set_tat(record, now + after.micros, after.rest);
    }
}

/// Moves the TAT to where it would be if the cost had been another.
///
/// In a leaky bucket other requests may have reserved the times after this one. Only the last reservation can
/// be returned, or two requests would leave together. It is recognized by `charged`, the time at which the
/// request would have left.
pub(crate) fn settle(size: BucketSize, quota: Quota, record: &mut Record, charged: u64, delta: i64) {
    let requests = quota.requests.get();
    let span = capped(time_of(quota, delta.unsigned_abs().min(MAX_COUNT)));
    let before = Span { micros: tat(record), rest: record.current };
    let after = if delta < 0 { before.minus(span, requests) } else { before.plus(span, requests) };
    let is_refundable = match size {
        BucketSize::Burst(_) => true,
        BucketSize::Delay(_) => delta >= 0 || after.ceil() == charged,
    };
    let after = if is_refundable { after } else { before };
    set_tat(record, after.micros, after.rest);
}

/// Moves the TAT back to where it was before `cost` was charged.
pub(crate) fn undo_charge(quota: Quota, record: &mut Record, cost: u64) {
    let after = Span { micros: tat(record), rest: record.current };
    let before = after.minus(time_of(quota, cost), quota.requests.get());
    set_tat(record, before.micros, before.rest);
}

/// Decides about `cost`; `has_room` was decided before a charge.
#[inline]
pub(crate) fn decide(
    size: BucketSize,
    quota: Quota,
    record: &Record,
    now: u64,
    cost: u64,
    has_room: bool,
    charged: bool,
) -> Decision {
    let requests = quota.requests.get();
    let ahead = ahead(record, now);
    let retry_after = |capacity: Span| {
        let need = ahead.plus(time_of(quota, cost), requests);
        (time_of(quota, cost) <= capacity).then(|| need.minus(capacity, requests).ceil())
    };
    let (remaining, delay) = match size {
        BucketSize::Burst(_) if requests == 0 => (0, 0),
        BucketSize::Burst(burst) => (burst.get() - used(size, quota, record, now), 0),
        BucketSize::Delay(_) => {
            let remaining = capacity(size, quota, 1).map_or(0, |all| tokens(quota, record, all, now));
            let delay = if charged { ahead.minus(time_of(quota, cost), requests).ceil() } else { 0 };
            (remaining, delay)
        }
    };
    Decision {
        remaining,
        reset: ahead.ceil(),
        retry_after: if has_room { None } else { capacity(size, quota, cost).and_then(retry_after) },
        delay,
        ..Decision::new(quota, has_room)
    }
}

/// Returns the arguments for the script: capacity for this cost and its rest, time of the cost and its rest,
/// and how far ahead a stored TAT may be, all in microseconds.
pub(crate) fn script_arguments(size: BucketSize, quota: Quota, cost: u64) -> [u64; 5] {
    let cost = cost.max(1);
    let (capacity, span) = (capacity(size, quota, cost), capped(time_of(quota, cost)));
    let capacity = capacity.unwrap_or(Span::ZERO);
    [capacity.micros, capacity.rest, span.micros, span.rest, furthest(size, quota)]
}

/// Returns the arguments for a settlement: 1 for a leaky bucket and 0, then as [`script_arguments`].
pub(crate) fn settlement_script_arguments(size: BucketSize, quota: Quota, amount: u64) -> [u64; 5] {
    let [_, _, micros, rest, furthest] = script_arguments(size, quota, amount);
    let is_leaky = matches!(size, BucketSize::Delay(_));
    [u64::from(is_leaky), 0, micros, rest, furthest]
}

/// Returns the instant, in milliseconds, from which the record no longer changes a decision.
pub(crate) fn expires_at(record: &Record) -> u64 {
    record.window.saturating_add(1)
}

fn tat(record: &Record) -> u64 {
    record.window.saturating_mul(1000).saturating_add(record.previous)
}

fn set_tat(record: &mut Record, micros: u64, rest: u64) {
    (record.window, record.previous, record.current) = (micros / 1000, micros % 1000, rest);
}

/// Returns how far the TAT is ahead of now.
fn ahead(record: &Record, now: u64) -> Span {
    let tat = tat(record);
    if tat < now { Span::ZERO } else { Span { micros: tat - now, rest: record.current } }
}

/// Returns the time that `requests` take at the rate's own pace.
#[inline]
fn time_of(quota: Quota, requests: u64) -> Span {
    Span::of(requests, quota.period.micros(), quota.requests.get())
}

/// Returns how far ahead of now a request of `cost` may move the TAT; `None` if the rate admits nothing.
fn capacity(size: BucketSize, quota: Quota, cost: u64) -> Option<Span> {
    let requests = quota.requests.get();
    if requests == 0 {
        return None;
    }
    Some(match size {
        BucketSize::Burst(burst) => time_of(quota, burst.get()),
        BucketSize::Delay(max_wait) if cost <= requests => {
            time_of(quota, cost).plus(Span { micros: max_wait.micros(), rest: 0 }, requests)
        }
        BucketSize::Delay(_) => Span::ZERO,
    })
}

/// Returns the furthest that the TAT can be ahead, in whole microseconds. One beyond it comes from another
/// clock or another number.
fn furthest(size: BucketSize, quota: Quota) -> u64 {
    match size {
        BucketSize::Burst(burst) => time_of(quota, burst.get()).ceil(),
        BucketSize::Delay(max_wait) => max_wait.micros() + quota.period.micros(),
    }
}

/// Returns the number of requests of cost 1 that fit now.
fn tokens(quota: Quota, record: &Record, capacity: Span, now: u64) -> u64 {
    let requests = quota.requests.get();
    if requests == 0 {
        return 0;
    }
    let left = capacity.minus(ahead(record, now), requests);
    let left = u128::from(left.micros) * u128::from(requests) + u128::from(left.rest);
    (left / u128::from(quota.period.micros())) as u64
}

/// Limits the span by which a settlement moves a TAT: the script's doubles cannot hold a longer one exactly.
fn capped(span: Span) -> Span {
    if span.micros >= 1 << 51 { Span { micros: 1 << 51, rest: 0 } } else { span }
}

#[cfg(test)]
mod tests;
