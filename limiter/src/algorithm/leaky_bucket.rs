//! The leaky bucket. An admitted request is delayed until the theoretical arrival time, which is at most
//! `maxWait` away. So requests leave at a constant rate.

use super::arrival::{self, Span};
use super::definition::{Checked, Definition};
use crate::decision::Decision;
use crate::duration::{Millis, Words};
use crate::error::RateError;
use crate::number::{MAX_PERIOD_MS, ranged};
use crate::quota::Quota;
use crate::record::{Record, Tag};

ranged! {
    /// The longest delay of a request, 0 to [`MAX_PERIOD_MS`] milliseconds.
    MaxWait(u64), from_millis(0..=MAX_PERIOD_MS),
    /// Returns the delay in milliseconds.
    millis
}

impl MaxWait {
    /// Returns the delay in microseconds.
    #[must_use]
    pub fn micros(self) -> u64 {
        self.0 * 1000
    }
}

/// A bucket that drains at a constant rate, and delays requests accordingly.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LeakyBucket {
    pub(crate) max_wait: MaxWait,
}

impl Definition for LeakyBucket {
    fn validate(self, _quota: Quota) -> Result<(), RateError> {
        Ok(())
    }

    #[inline]
    fn tag(self, quota: Quota) -> Tag {
        arrival::tag(quota)
    }

    #[inline]
    fn roll(self, quota: Quota, stored: Record, now: u64) -> (Record, u64) {
        (arrival::roll(quota, stored, now, self.furthest(quota)), now)
    }

    /// Returns 1 if a request would be delayed, otherwise 0.
    #[inline]
    fn used(self, _quota: Quota, record: &Record, now: u64) -> u64 {
        u64::from(arrival::ahead(record, now) > Span::ZERO)
    }

    #[inline]
    fn has_room(self, quota: Quota, record: &Record, now: u64, cost: u64) -> bool {
        let capacity = self.furthest_after(quota, cost);
        capacity.is_some_and(|capacity| arrival::has_room(quota, record, now, cost, capacity))
    }

    #[inline]
    fn charge(self, quota: Quota, record: &mut Record, now: u64, cost: u64) {
        arrival::charge(quota, record, now, cost);
    }

    fn undo_charge(self, quota: Quota, record: &mut Record, _now: u64, cost: u64) {
        arrival::undo_charge(quota, record, cost);
    }

    /// Other requests may have reserved the times after this one. Only the last reservation can be returned,
    /// or two requests would leave together. It is recognized by `charged`, the time at which the request
    /// would have left.
    fn settle(self, quota: Quota, record: &mut Record, _now: u64, charged: u64, delta: i64) {
        arrival::settle(quota, record, delta, |after| delta >= 0 || after.ceil() == charged);
    }

    #[inline]
    fn decide(self, quota: Quota, record: &Record, checked: Checked) -> Decision {
        let Checked { now, cost, has_room, charged } = checked;
        let (ahead, requests) = (arrival::ahead(record, now), quota.requests.get());
        let own = || arrival::time_of(quota, cost);
        let retry_after = |capacity| arrival::retry_after(quota, ahead, cost, capacity);
        let tokens = |capacity| arrival::tokens(quota, record, capacity, now);
        Decision {
            remaining: self.furthest_after(quota, 1).map_or(0, tokens),
            reset: ahead.ceil(),
            retry_after: if has_room { None } else { self.furthest_after(quota, cost).and_then(retry_after) },
            delay: if charged { ahead.minus(own(), requests).ceil() } else { 0 },
            ..Decision::new(quota, has_room)
        }
    }

    /// Returns the capacity for this cost and its rest, the time of the cost and its rest, and how far ahead
    /// the arrival time may be.
    fn script_arguments(self, quota: Quota, _key: u128, cost: u64) -> [u64; 5] {
        let cost = cost.max(1);
        arrival::script_arguments(quota, cost, self.furthest_after(quota, cost), self.furthest(quota))
    }

    /// Returns the same arguments, but 1 and 0 instead of the capacity.
    fn settlement_script_arguments(self, quota: Quota, _key: u128, amount: u64) -> [u64; 5] {
        let leaky = Span { micros: 1, rest: 0 };
        arrival::script_arguments(quota, amount.max(1), Some(leaky), self.furthest(quota))
    }

    fn delays(self) -> bool {
        true
    }

    fn description(self, quota: Quota) -> String {
        format!("forwards {quota}, with a delay of at most {}", Words(self.max_wait.millis()))
    }

    fn notes(self, _quota: Quota) -> Vec<String> {
        vec![format!("leakyBucket maxWait {}", Millis(self.max_wait.millis()))]
    }
}

impl LeakyBucket {
    /// Returns how far ahead of now a request of `cost` may move the arrival time; `None` if the rate admits
    /// nothing.
    #[inline]
    fn furthest_after(self, quota: Quota, cost: u64) -> Option<Span> {
        let requests = quota.requests.get();
        let wait = Span { micros: self.max_wait.micros(), rest: 0 };
        match requests {
            0 => None,
            _ if cost <= requests => Some(arrival::time_of(quota, cost).plus(wait, requests)),
            _ => Some(Span::ZERO),
        }
    }

    /// Returns the furthest that the arrival time can be ahead, in microseconds.
    #[inline]
    fn furthest(self, quota: Quota) -> u64 {
        self.max_wait.micros() + quota.period.micros()
    }
}
