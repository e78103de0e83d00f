//! Concurrency that many processes share: at most N requests at a time, whoever serves them. Each process is a *holder*; a
//! record says how many requests each holder has under way, and until when it is to be believed. A holder says so anew
//! before that (it *renews*); one that has died is forgotten when its time is over.
//!
//! Charging takes places, settling gives them back (a negative correction) or only renews (none). How long a denied request
//! should wait nobody can know: its retry-after is an estimate of one second.
//!
//! In a [`Record`]: `tail` holds three numbers for each holder: who, how many, until when in milliseconds; `slot` is the
//! latest of those instants. The tag's period is 1, so that an edit of the time to live keeps the record.

use crate::rate::within;
use crate::sliding_window_log::RecordView;
use crate::{OutOfRange, Rate, Record};

/// The largest number of requests at a time.
pub const MAX_CONCURRENT: u64 = 1_000_000;
/// How many holders a record can name; there is no room for another one.
pub const MAX_HOLDERS: usize = 1000;
/// What a denied request is told to wait, in microseconds: an estimate.
pub const RETRY_AFTER_MICROS: u64 = 1_000_000;

/// Who holds places: a number below 2^48, drawn at random by each process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Holder(u64);

impl Holder {
    /// Checks the range.
    pub fn new(value: u64) -> Result<Self, OutOfRange> {
        within(value, 1, (1 << 48) - 1).map(Self)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0
    }
}

/// The record at `now`, without holders who have not renewed. None is believed for longer than a time to live.
pub(crate) fn roll(rate: &Rate, mut record: Record, now: u64) -> Record {
    let (millis, latest) = (now / 1000, now / 1000 + rate.period.millis());
    let live = record.tail.chunks_exact(3).filter(|holder| holder[1] > 0 && holder[2] > millis);
    record.tail = live.flat_map(|holder| [holder[0], holder[1], holder[2].min(latest)]).collect();
    set_slot(&mut record);
    record
}

fn set_slot(record: &mut Record) {
    record.window = record.tail.chunks_exact(3).map(|holder| holder[2]).max().unwrap_or(0);
}

pub(crate) fn used(record: &Record) -> u64 {
    record.tail.chunks_exact(3).map(|holder| holder[1]).sum()
}

pub(crate) fn has_room(record: &Record, holder: Holder, cost: u64, requests: u64) -> bool {
    let known = record.tail.chunks_exact(3).any(|other| other[0] == holder.0);
    used(record).saturating_add(cost) <= requests && (known || record.tail.len() < 3 * MAX_HOLDERS)
}

pub(crate) fn charge(rate: &Rate, record: &mut Record, holder: Holder, now: u64, cost: u64) {
    if cost == 0 {
        return;
    }
    let until = now / 1000 + rate.period.millis();
    match record.tail.chunks_exact_mut(3).find(|other| other[0] == holder.0) {
        Some(own) => (own[1], own[2]) = (own[1] + cost, until),
        None => record.tail.extend([holder.0, cost, until]),
    }
    set_slot(record);
}

/// Gives places back, or takes more; with 0 renews. Does nothing for a holder that is not known (any more).
pub(crate) fn settle(rate: &Rate, record: &mut Record, holder: Holder, now: u64, delta: i64) {
    let until = now / 1000 + rate.period.millis();
    if let Some(own) = record.tail.chunks_exact_mut(3).find(|other| other[0] == holder.0) {
        own[1] = own[1].saturating_add_signed(delta).min(MAX_CONCURRENT);
        own[2] = until;
    }
    record.tail = record.tail.chunks_exact(3).filter(|other| other[1] > 0).flatten().copied().collect();
    set_slot(record);
}

/// What an answer needs to know.
pub(crate) fn view(record: &Record) -> RecordView {
    RecordView { newest: record.window, used: used(record), leaves: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{check, rate};
    use crate::{Algorithm, MAX_PERIOD_MS};

    const START: u64 = 1_126_000_020_000_000;

    fn at_a_time(requests: u64, holder: u64) -> Rate {
        rate(requests, 30_000, Algorithm::Concurrency { holder: Holder::new(holder).unwrap() })
    }

    #[test]
    fn places_are_taken_and_given_back() {
        let (one, two) = (at_a_time(3, 1), at_a_time(3, 2));
        let (record, first) = check(&one, None, START, 2);
        let (record, second) = check(&two, Some(record), START + 1, 1);
        let (record, third) = check(&two, Some(record), START + 2, 1);
        assert!(first.admitted && second.admitted && !third.admitted);
        assert_eq!((second.remaining, third.retry_after), (0, Some(RETRY_AFTER_MICROS)));
        let record = one.settle(record, START + 3, START, -1);
        let (record, fourth) = check(&two, Some(record), START + 4, 1);
        assert!(fourth.admitted);
        // Nobody gives back more than it holds.
        let record = one.settle(record, START + 5, START, -100);
        assert_eq!(one.used(&record, START + 5), 2);
        assert_eq!(check(&one, Some(record), START + 6, 5).1.retry_after, None, "five never fit");
    }

    #[test]
    fn a_holder_that_does_not_renew_is_forgotten() {
        let (one, two) = (at_a_time(1, 1), at_a_time(1, 2));
        let (record, _) = check(&one, None, START, 1);
        let ttl = 30_000_000;
        assert!(!check(&two, Some(record.clone()), START + ttl - 1, 1).1.admitted);
        assert!(check(&two, Some(record.clone()), START + ttl, 1).1.admitted);
        let (rolled, at) = one.roll(Some(record), START + ttl - 1);
        let renewed = one.settle(rolled, at, START, 0);
        assert!(!check(&two, Some(renewed.clone()), START + 2 * ttl - 1001, 1).1.admitted);
        // A clock that was wrong by a year holds nothing for longer than a time to live.
        let back = START - MAX_PERIOD_MS * 1000;
        let (record, denied) = check(&two, Some(renewed), back, 1);
        assert!(!denied.admitted && check(&two, Some(record), back + ttl, 1).1.admitted);
    }

    #[test]
    fn there_is_no_room_for_more_holders_than_a_record_can_name() {
        let mut record = None;
        for holder in 1..=MAX_HOLDERS as u64 {
            let (next, decision) = check(&at_a_time(5000, holder), record, START, 1);
            assert!(decision.admitted);
            record = Some(next);
        }
        assert!(!check(&at_a_time(5000, 5000), record.clone(), START, 1).1.admitted);
        assert!(check(&at_a_time(5000, 7), record, START, 1).1.admitted, "a known holder takes more");
    }
}
