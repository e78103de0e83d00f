//! The sliding-window log: the instants of the newest N admitted requests. A request is admitted if fewer
//! than N lie in the period that ends now.
//!
//! The log is exact in every trailing period, in whole milliseconds, and takes 6 bytes a request: so N is at
//! most [`MAX_REQUESTS`]. A request of cost c is c instants. After the "sliding log" of the Kong and Figma
//! articles (2017), which use a sorted set.
//!
//! `minInterval` also requires that much time between two admitted requests.
//!
//! In a [`Record`] `tail` holds the instants in milliseconds, newest first, and `window` the newest, also of those that were refunded.

use super::definition::{Checked, Definition, Windows};
use super::shape::RecordView;
use crate::decision::Decision;
use crate::duration::{Millis, Words};
use crate::error::RateError;
use crate::quota::Quota;
use crate::record::{Kind, MAX_INSTANTS, Record, Tag};

/// The largest number of requests of a log.
const MAX_REQUESTS: u64 = MAX_INSTANTS as u64;

/// The sliding-window log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SlidingWindowLog {
    /// Shortest time between two admitted requests, in milliseconds; 0 for none.
    pub(crate) min_interval: u64,
}

impl Definition for SlidingWindowLog {
    fn validate(self, quota: Quota) -> Result<(), RateError> {
        let (requests, period, interval) = (quota.requests.get(), quota.period.millis(), self.min_interval);
        if requests > MAX_REQUESTS {
            Err(RateError::LongLog(requests))
        } else if interval > period {
            Err(RateError::LongInterval { interval, period })
        } else {
            Ok(())
        }
    }

    fn can_count_denied(self) -> bool {
        true
    }

    fn windows(self) -> Option<Windows> {
        (self.min_interval == 0).then_some(Windows::Any)
    }

    #[inline]
    fn tag(self, quota: Quota) -> Tag {
        Tag::new(Kind::Log, 0, quota.period.millis())
    }

    fn roll(self, quota: Quota, mut stored: Record, now: u64) -> (Record, u64) {
        let (millis, period) = (now / 1000, quota.period.millis());
        let mut at = now;
        if stored.window > millis + period {
            rebase(&mut stored, millis);
        } else if stored.window > millis {
            at = stored.window * 1000;
        }
        let kept = stored.tail.partition_point(|instant| instant + period > at / 1000);
        stored.tail.truncate(kept);
        set_newest(&mut stored);
        (stored, at)
    }

    #[inline]
    fn used(self, _quota: Quota, record: &Record, _now: u64) -> u64 {
        record.tail.len() as u64
    }

    #[inline]
    fn has_room(self, quota: Quota, record: &Record, now: u64, cost: u64) -> bool {
        self.view_has_room(quota, &self.view(quota, record, cost), now, cost)
    }

    fn charge(self, quota: Quota, record: &mut Record, now: u64, cost: u64) {
        let requests = quota.requests.get();
        let cost = cost.min(requests) as usize;
        record.tail.splice(0..0, std::iter::repeat_n(now / 1000, cost));
        record.tail.truncate(requests as usize);
        set_newest(record);
    }

    fn settle(self, quota: Quota, record: &mut Record, _now: u64, charged: u64, delta: i64) {
        let (millis, requests) = (charged / 1000, quota.requests.get());
        let from = record.tail.partition_point(|&instant| instant > millis);
        if delta < 0 {
            // What was charged at that instant is there as long as anything before it is. What is given back without a charge of its own
            // takes the newest.
            let removed = (record.tail.len() - from).min(delta.unsigned_abs() as usize);
            record.tail.drain(from..from + removed);
        } else {
            let added = delta.unsigned_abs().min(requests) as usize;
            record.tail.splice(from..from, std::iter::repeat_n(millis, added));
            record.tail.truncate(requests as usize);
        }
        set_newest(record);
    }

    fn is_mergeable(self) -> bool {
        self.min_interval == 0
    }

    #[inline]
    fn decide(self, quota: Quota, record: &Record, checked: Checked) -> Decision {
        self.decide_from_view(quota, &self.view(quota, record, checked.cost), checked)
    }

    #[inline]
    fn view(self, quota: Quota, record: &Record, cost: u64) -> RecordView {
        let kept = quota.requests.get().checked_sub(cost);
        let leaves = kept.and_then(|kept| record.tail.get(kept as usize)).copied().unwrap_or(0);
        let newest = record.tail.first().copied().unwrap_or(0);
        RecordView { newest, used: record.tail.len() as u64, leaves }
    }

    #[inline]
    fn view_has_room(self, quota: Quota, view: &RecordView, now: u64, cost: u64) -> bool {
        let is_too_soon = self.min_interval > 0
            && view.used > 0
            && view.newest + self.min_interval > effective(view, now) / 1000;
        view.used.saturating_add(cost) <= quota.requests.get() && !is_too_soon
    }

    #[inline]
    fn decide_from_view(self, quota: Quota, view: &RecordView, checked: Checked) -> Decision {
        let Checked { now, cost, has_room, .. } = checked;
        let (requests, period, now) = (quota.requests.get(), quota.period.millis(), effective(view, now));
        let retry_after = || {
            let room = if view.leaves == 0 { 0 } else { view.leaves + period };
            let is_alone = self.min_interval == 0 || view.used == 0;
            let pause = if is_alone { 0 } else { view.newest + self.min_interval };
            (room.max(pause) * 1000).saturating_sub(now)
        };
        Decision {
            remaining: requests.saturating_sub(view.used),
            reset: if view.used == 0 { 0 } else { ((view.newest + period) * 1000).saturating_sub(now) },
            retry_after: (!has_room && cost <= requests).then(retry_after),
            ..Decision::new(quota, has_room)
        }
    }

    /// Returns the minimum interval in milliseconds, and in the place of windows 1 if denials count.
    fn script_arguments(self, quota: Quota, _key: u128, _cost: u64) -> [u64; 5] {
        [self.min_interval, 0, 0, u64::from(quota.count_denied), 0]
    }

    fn script_weight(self, quota: Quota) -> usize {
        3 + quota.requests.get() as usize / 1000
    }

    fn description(self, quota: Quota) -> String {
        let interval = match self.min_interval {
            0 => String::new(),
            millis => format!(", at least {} apart", Words(millis)),
        };
        format!("admits {quota}{interval}")
    }

    fn notes(self, _quota: Quota) -> Vec<String> {
        let interval = (self.min_interval > 0).then(|| format!("minInterval {}", Millis(self.min_interval)));
        ["slidingWindowLog".into()].into_iter().chain(interval).collect()
    }
}

/// Moves all instants of a record from far in the future back to `millis`.
pub(crate) fn rebase(record: &mut Record, millis: u64) {
    record.window = millis;
    record.tail.fill(millis);
}

/// Where nothing is left, the record lasts as long as it would have: whoever knows it must not take it for lost.
fn set_newest(record: &mut Record) {
    if let Some(&newest) = record.tail.first() {
        record.window = newest;
    }
}

/// Returns the instant that counts for a log: its time never runs backwards.
#[inline]
fn effective(view: &RecordView, now: u64) -> u64 {
    now.max(view.newest * 1000)
}

#[cfg(test)]
mod tests;
