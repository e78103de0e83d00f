//! The sliding-window counter. The period is cut into m sub-windows, or slots; a record keeps the current slot and the m
//! before it. `Estimate`: used = current + whole previous slots + ceil(oldest * rest / slot length), rest being what is
//! left of the current slot: the share of the oldest one that the last period still overlaps. With m = 1 it is the
//! counter of two windows that Cloudflare describes ("How we built rate limiting capable of scaling to millions of
//! domains", 2017); here in exact integers. `Guaranteed`: the oldest slot counts whole.
//!
//! Within one aligned period never more than N pass. Within a trailing one the estimate can be driven by an adversary
//! who fills the end of a slot: with m = 1 up to 2N - 1. `Guaranteed` never exceeds N in any trailing period, and
//! admits m / (m + 1) of the rate to who sends all the time: choose m well above 1.

use crate::algorithm::{Bound, shifted};
use crate::record::Counts;
use crate::{MAX_COUNT, Record};

/// The record at `now`, and the instant that counts.
#[inline]
pub(crate) fn roll(mut record: Record, now: u64) -> (Record, u64) {
    let length = record.tag.slot_millis() * 1000;
    let newest = now / length;
    if record.slot == newest {
        return (record, now);
    }
    let kept = record.tag.previous_slots();
    if record.slot < newest {
        advance(&mut record, newest, kept);
        (record, now)
    } else if record.slot - newest <= kept.max(1) {
        let at = record.slot * length;
        (record, at)
    } else {
        let all = record.tail.iter().fold(record.current + record.previous, |sum, n| sum.saturating_add(*n));
        record.current = all.min(MAX_COUNT);
        record.previous = 0;
        record.tail.fill(0);
        record.slot = newest;
        let now = now / 1000;
        record.over.since = record.over.since.min(now);
        record.over.last = record.over.last.min(now);
        (record, now * 1000)
    }
}

/// Moves a record on to a later slot.
fn advance(record: &mut Record, newest: u64, kept: u64) {
    let by = newest - record.slot;
    if by > kept {
        record.previous = 0;
        record.tail.fill(0);
    } else if record.tail.is_empty() {
        record.previous = record.current;
    } else {
        let by = by as usize;
        let (first, second) = (record.current, record.previous);
        let tail = record.tail.len();
        record.tail.rotate_right(by.min(tail));
        record.tail[..(by - 1).min(tail)].fill(0);
        if by >= 2 && by - 2 < tail {
            record.tail[by - 2] = first;
        }
        if by - 1 < tail {
            record.tail[by - 1] = second;
        }
        record.previous = if by == 1 { first } else { 0 };
    }
    record.current = 0;
    record.slot = newest;
}

/// Requests used in the period that ends at `now`, as estimated or at most.
#[inline]
pub(crate) fn used(record: &Record, bound: Bound, now: u64) -> u64 {
    let (whole, oldest) = match record.tail.split_last() {
        None => (record.current, record.previous),
        Some((oldest, others)) => (record.current + record.previous + others.iter().sum::<u64>(), *oldest),
    };
    match bound {
        Bound::Guaranteed => whole + oldest,
        Bound::Estimate if oldest == 0 => whole,
        Bound::Estimate => {
            let length = record.tag.slot_millis();
            whole + ceil_share(oldest, (record.slot + 1) * length - now / 1000, length)
        }
    }
}

/// Microseconds until nothing counts any more.
pub(crate) fn reset(record: &Record, _bound: Bound, now: u64) -> u64 {
    let kept = record.tag.previous_slots();
    let counts = Counts(record);
    match (0..=kept).find(|&index| counts.get(index) > 0) {
        Some(index) => (record.slot + kept + 1 - index) * record.tag.slot_millis() * 1000 - now,
        None => 0,
    }
}

/// The instant, in milliseconds, from which on at most `spare` requests are used.
pub(crate) fn falls_to(record: &Record, bound: Bound, now: u64, spare: u64) -> u64 {
    let (kept, length) = (record.tag.previous_slots(), record.tag.slot_millis());
    let counts = Counts(record);
    // What counts whole while slot + ahead is the current one: all but the oldest.
    let mut whole: u64 = (0..kept).map(|index| counts.get(index)).sum();
    for ahead in 0..=kept {
        let begins = (record.slot + ahead) * length;
        let oldest = counts.get(kept - ahead);
        if whole <= spare {
            let share = spare - whole;
            let at = if oldest <= share {
                begins
            } else {
                match bound {
                    Bound::Estimate => begins + length - floor_share(share, length, oldest),
                    Bound::Guaranteed => begins + length,
                }
            };
            return at.max(now / 1000);
        }
        if ahead < kept {
            whole -= counts.get(kept - ahead - 1);
        }
    }
    (record.slot + kept + 1) * length
}

/// Corrects the count of the slot that was charged.
pub(crate) fn settle(record: &mut Record, charged: u64, delta: i64) {
    let slot = charged / (record.tag.slot_millis() * 1000);
    let index = record.slot.saturating_sub(slot);
    let count = match index {
        0 => &mut record.current,
        _ if index > record.tag.previous_slots() => return,
        1 => &mut record.previous,
        _ => match record.tail.get_mut(index as usize - 2) {
            Some(count) => count,
            None => return,
        },
    };
    *count = shifted(*count, delta);
}

/// ceil(count * part / whole), for part <= whole: it fits wherever `count` does.
#[inline]
fn ceil_share(count: u64, part: u64, whole: u64) -> u64 {
    match count.checked_mul(part) {
        Some(product) => product.div_ceil(whole),
        None => (u128::from(count) * u128::from(part)).div_ceil(u128::from(whole)) as u64,
    }
}

/// floor(count * period / whole), for count < whole: it is below `period`.
fn floor_share(count: u64, period: u64, whole: u64) -> u64 {
    (u128::from(count) * u128::from(period) / u128::from(whole)) as u64
}
