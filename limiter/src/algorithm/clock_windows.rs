//! Windows that begin at multiples of their length since the Unix epoch. A record holds the newest window and
//! a fixed number of earlier ones.

use crate::number::{MAX_COUNT, add_delta};
use crate::record::Record;

/// Returns the record at `now` and the instant that counts: `now`, or the beginning of the newest stored
/// window if that is a little later.
#[inline]
pub(crate) fn roll(mut record: Record, now: u64) -> (Record, u64) {
    let length = record.tag.window_millis() * 1000;
    let newest = now / length;
    if record.window == newest {
        return (record, now);
    }
    let kept = record.tag.previous_windows();
    if record.window < newest {
        advance(&mut record, newest, kept);
        (record, now)
    } else if record.window - newest <= kept.max(1) {
        let at = record.window * length;
        (record, at)
    } else {
        let at = now / 1000 * 1000;
        rebase(&mut record, newest, now);
        (record, at)
    }
}

/// Moves the record to a later window and forgets the windows that are too old.
fn advance(record: &mut Record, newest: u64, kept: u64) {
    let by = newest - record.window;
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
    record.window = newest;
}

/// Moves all usage of a record from the future into the current window.
fn rebase(record: &mut Record, newest: u64, now: u64) {
    let all = record.tail.iter().fold(record.current + record.previous, |sum, n| sum.saturating_add(*n));
    record.current = all.min(MAX_COUNT);
    record.previous = 0;
    record.tail.fill(0);
    record.window = newest;
    record.overrun.rebase(now / 1000);
}

/// Returns the end of the newest window in milliseconds.
#[inline]
pub(crate) fn newest_end(record: &Record) -> u64 {
    (record.window + 1) * record.tag.window_millis()
}

/// Adds `delta` to the window in which the instant `charged` lies, if the record still has it.
pub(crate) fn settle(record: &mut Record, charged: u64, delta: i64) {
    let window = charged / (record.tag.window_millis() * 1000);
    // Rule: lease.refund-of-window.
    let index = record.window.saturating_sub(window);
    let count = match index {
        0 => &mut record.current,
        _ if index > record.tag.previous_windows() => return,
        1 => &mut record.previous,
        _ => match record.tail.get_mut(index as usize - 2) {
            Some(count) => count,
            None => return,
        },
    };
    *count = add_delta(*count, delta);
}

/// Returns the instant, in milliseconds, from which the record no longer changes a decision.
pub(crate) fn expires_at(record: &Record) -> u64 {
    // A damaged value may hold any window, so nothing here may overflow.
    record.window.saturating_add(record.tag.previous_windows() + 1).saturating_mul(record.tag.window_millis())
}

/// Rebases a record that is more than its own windows ahead of `now`.
pub(crate) fn carry_over(record: Record, now: u64) -> Record {
    let newest = now / 1000 / record.tag.window_millis();
    if record.window > newest + record.tag.previous_windows().max(1) { roll(record, now).0 } else { record }
}
