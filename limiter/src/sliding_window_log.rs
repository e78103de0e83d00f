//! The sliding-window log: every admitted request by its instant, the newest N of them; admit iff fewer than N lie in
//! the period that ends now. Exact in every trailing period, in whole milliseconds, at 6 bytes a request: so N is at most
//! [`MAX_REQUESTS`]. A request of cost c is c instants. After the "sliding log" of the Kong and Figma write-ups
//! (2017), there a sorted set.
//!
//! `minInterval` also wants that much time between two admitted requests. `countDenied` records denied requests too, so
//! that a client that keeps asking stays denied.
//!
//! In a [`Record`]: `tail` holds the instants in milliseconds, newest first; `window` is the newest, 0 if there is none.

use crate::{Rate, Record};

/// The largest number of requests of a log.
pub const MAX_REQUESTS: u64 = 10_000;

/// The record at `now`, without what no longer counts, and the instant that counts.
pub(crate) fn roll(rate: &Rate, mut record: Record, now: u64) -> (Record, u64) {
    let (millis, period) = (now / 1000, rate.period.millis());
    let mut at = now;
    if record.window > millis + period {
        record.tail.fill(millis);
    } else if record.window > millis {
        at = record.window * 1000;
    }
    let kept = record.tail.partition_point(|instant| instant + period > at / 1000);
    record.tail.truncate(kept);
    record.window = record.tail.first().copied().unwrap_or(0);
    (record, at)
}

pub(crate) fn has_room(record: &Record, now: u64, cost: u64, requests: u64, min_interval: u64) -> bool {
    let fits = (record.tail.len() as u64).saturating_add(cost) <= requests;
    fits && (min_interval == 0 || record.tail.is_empty() || record.window + min_interval <= now / 1000)
}

/// Notes `cost` requests at `now`, and forgets all but the newest `requests`.
pub(crate) fn add(record: &mut Record, now: u64, cost: u64, requests: u64) {
    let cost = cost.min(requests) as usize;
    record.tail.splice(0..0, std::iter::repeat_n(now / 1000, cost));
    record.tail.truncate(requests as usize);
    record.window = record.tail.first().copied().unwrap_or(0);
}

/// Adds or removes requests at the instant that was charged.
pub(crate) fn settle(record: &mut Record, charged: u64, delta: i64, requests: u64) {
    let millis = charged / 1000;
    let from = record.tail.partition_point(|&instant| instant > millis);
    if delta < 0 {
        let to = record.tail.partition_point(|&instant| instant >= millis);
        let gone = (to - from).min(delta.unsigned_abs() as usize);
        record.tail.drain(from..from + gone);
    } else {
        let more = delta.unsigned_abs().min(requests) as usize;
        record.tail.splice(from..from, std::iter::repeat_n(millis, more));
        record.tail.truncate(requests as usize);
    }
    record.window = record.tail.first().copied().unwrap_or(0);
}

/// What an answer needs to know of a log; instants in milliseconds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordView {
    /// The newest instant; 0 if there is none.
    pub newest: u64,
    /// How many count.
    pub used: u64,
    /// The instant that has to leave before the cost fits; 0 if it fits.
    pub leaves: u64,
}

/// The view of a rolled record that a check of `cost` needs.
#[must_use]
pub fn view(record: &Record, cost: u64, requests: u64) -> RecordView {
    let leaves = requests.checked_sub(cost.max(1)).and_then(|kept| record.tail.get(kept as usize));
    RecordView { newest: record.window, used: record.tail.len() as u64, leaves: leaves.copied().unwrap_or(0) }
}

impl RecordView {
    pub(crate) fn reset(&self, period: u64, now: u64) -> u64 {
        if self.used == 0 { 0 } else { ((self.newest + period) * 1000).saturating_sub(now) }
    }

    pub(crate) fn retry_after(&self, period: u64, min_interval: u64, now: u64) -> u64 {
        let room = if self.leaves == 0 { 0 } else { self.leaves + period };
        let pause = if min_interval == 0 || self.used == 0 { 0 } else { self.newest + min_interval };
        (room.max(pause) * 1000).saturating_sub(now)
    }
}

#[cfg(test)]
mod tests {
    use crate::Algorithm;
    use crate::sliding_window_counter::tests::{Numbers, fullest, worst_in};
    use crate::testing::{check, rate};

    /// Admitted iff the trailing period, of all that was ever recorded, has room: no more, and no less. In milliseconds, as
    /// all windows count.
    #[test]
    fn a_log_is_exact_in_every_trailing_period() {
        let mut numbers = Numbers(31);
        let (mut yes, mut no) = (0, 0);
        for _ in 0..400 {
            let (requests, period) = (1 + numbers.below(30), 1 + numbers.below(2000));
            let min_interval = if numbers.below(2) == 0 { 0 } else { numbers.below(period + 1) };
            let count_denied = numbers.below(3) == 0;
            let rate = rate(requests, period, Algorithm::SlidingWindowLog { min_interval, count_denied });
            let (mut now, mut stored) = (10_000_000_000, None);
            let (mut recorded, mut admitted) = (Vec::<(u64, u64)>::new(), vec![]);
            for _ in 0..300 {
                now += match numbers.below(5) {
                    0 => 0,
                    1 => period * 1000 - 1 + numbers.below(3),
                    2 if min_interval > 0 => min_interval * 1000 - 1 + numbers.below(3),
                    _ => numbers.below(period * 100),
                };
                let (millis, cost) = (now / 1000, 1 + numbers.below(3));
                let inside: u64 =
                    recorded.iter().filter(|(at, _)| at + period > millis).map(|(_, cost)| cost).sum();
                let quiet = recorded.last().is_none_or(|(at, _)| at + min_interval <= millis);
                let (record, decision) = check(&rate, stored, now, cost);
                stored = Some(record);
                assert_eq!(
                    decision.admitted,
                    inside + cost <= requests && quiet,
                    "{inside} at {now} of {rate:?}"
                );
                if decision.admitted {
                    admitted.push((millis, cost));
                }
                if decision.admitted || count_denied {
                    recorded.push((millis, cost));
                }
                *if decision.admitted { &mut yes } else { &mut no } += 1;
            }
            assert!(fullest(&admitted, period) <= requests);
        }
        assert!(yes > 10_000 && no > 10_000, "{yes} admitted, {no} denied");
    }

    #[test]
    fn no_adversary_exceeds_the_number_of_a_log() {
        let log = Algorithm::SlidingWindowLog { min_interval: 0, count_denied: false };
        for requests in [1, 10, 1000] {
            assert_eq!(worst_in(&rate(requests, 60_000, log), 3000, 5, 1000), requests);
        }
    }
}
