//! The theoretical arrival time (TAT), the state of all buckets: when the next request would arrive if all
//! came at the rate's own pace.
//!
//! A request of cost c moves the TAT to `max(TAT, now) + c * T`, with T = period / requests. It is admitted
//! if the TAT is then no further ahead of now than the capacity. After ITU-T I.371 and "Traffic Management
//! Specification Version 4.1" (ATM Forum, 1999), section 4.4.2, virtual scheduling. Turner (1986) describes
//! the same bucket, counted in tokens.
//!
//! T is seldom whole: at 3 requests a second it is 333,333 us and a third. So a TAT is whole microseconds and
//! a rest in units of 1 / requests microsecond, which is exact for 3 a second and for ten million.
//!
//! In a [`Record`] `window` holds the milliseconds of the TAT, `previous` its microseconds within them, and
//! `current` the rest.

mod span;

pub(crate) use span::Span;

use crate::number::MAX_COUNT;
use crate::quota::Quota;
use crate::record::{Kind, Record, Tag};

/// Returns the tag of the records of buckets.
#[inline]
pub(crate) fn tag(quota: Quota) -> Tag {
    Tag::new(Kind::Arrival, 0, quota.period.millis())
}

/// Returns the record at `now`. Corrects what was stored by a rate of another number or by another clock. A
/// TAT more than `furthest` microseconds ahead comes from one of these.
pub(crate) fn roll(quota: Quota, mut record: Record, now: u64, furthest: u64) -> Record {
    if record.current >= quota.requests.get().max(1) {
        // The rest counts in units of another number: round it up.
        let micros = tat(&record).saturating_add(1);
        set_tat(&mut record, micros, 0);
    }
    let latest = now + furthest;
    if tat(&record) > latest {
        set_tat(&mut record, latest, 0);
    }
    record
}

/// Reports whether `cost` moves the TAT no further ahead than the capacity.
#[inline]
pub(crate) fn has_room(quota: Quota, record: &Record, now: u64, cost: u64, capacity: Span) -> bool {
    ahead(record, now).plus(time_of(quota, cost), quota.requests.get()) <= capacity
}

/// Moves the TAT by the time of `cost`.
#[inline]
pub(crate) fn charge(quota: Quota, record: &mut Record, now: u64, cost: u64) {
    if cost > 0 {
        let after = ahead(record, now).plus(capped(time_of(quota, cost)), quota.requests.get());
        set_tat(record, now + after.micros, after.rest);
    }
}

/// Moves the TAT back to where it was before `cost` was charged.
pub(crate) fn undo_charge(quota: Quota, record: &mut Record, cost: u64) {
    let after = Span { micros: tat(record), rest: record.current };
    let before = after.minus(time_of(quota, cost), quota.requests.get());
    set_tat(record, before.micros, before.rest);
}

/// Moves the TAT to where it would be if the cost had been another, if `is_allowed` of the new TAT.
pub(crate) fn settle(quota: Quota, record: &mut Record, delta: i64, is_allowed: impl Fn(Span) -> bool) {
    let requests = quota.requests.get();
    let span = capped(time_of(quota, delta.unsigned_abs().min(MAX_COUNT)));
    let before = Span { micros: tat(record), rest: record.current };
    let after = if delta < 0 { before.minus(span, requests) } else { before.plus(span, requests) };
    let after = if is_allowed(after) { after } else { before };
    set_tat(record, after.micros, after.rest);
}

/// Returns the microseconds until `cost` fits, or `None` if it never does.
#[inline]
pub(crate) fn retry_after(quota: Quota, ahead: Span, cost: u64, capacity: Span) -> Option<u64> {
    let (cost, requests) = (time_of(quota, cost), quota.requests.get());
    (cost <= capacity).then(|| ahead.plus(cost, requests).minus(capacity, requests).ceil())
}

/// Returns the arguments for the script: capacity and its rest, time of the cost and its rest, and how far
/// ahead a stored TAT may be, all in microseconds.
pub(crate) fn script_arguments(quota: Quota, cost: u64, capacity: Option<Span>, furthest: u64) -> [u64; 5] {
    let (capacity, span) = (capacity.unwrap_or(Span::ZERO), capped(time_of(quota, cost)));
    [capacity.micros, capacity.rest, span.micros, span.rest, furthest]
}

fn tat(record: &Record) -> u64 {
    record.window.saturating_mul(1000).saturating_add(record.previous)
}

fn set_tat(record: &mut Record, micros: u64, rest: u64) {
    (record.window, record.previous, record.current) = (micros / 1000, micros % 1000, rest);
}

/// Returns how far the TAT is ahead of now.
pub(crate) fn ahead(record: &Record, now: u64) -> Span {
    let tat = tat(record);
    if tat < now { Span::ZERO } else { Span { micros: tat - now, rest: record.current } }
}

/// Returns the time that `requests` take at the rate's own pace.
#[inline]
pub(crate) fn time_of(quota: Quota, requests: u64) -> Span {
    Span::of(requests, quota.period.micros(), quota.requests.get())
}

/// Returns the number of requests of cost 1 that fit now.
pub(crate) fn tokens(quota: Quota, record: &Record, capacity: Span, now: u64) -> u64 {
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
