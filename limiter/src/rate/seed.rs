//! The first record of an edited rate.
//!
//! After an edit of a limit's period or of its sub-windows, no record of the new rate exists yet. But the
//! earlier records have counted the same requests. Where one of their windows lies within a window of the new
//! record, its count is a lower bound for that window. Only sliding-window counters and fixed windows aligned
//! to the clock can prove counts to each other.

use super::definition::Rate;
use crate::algorithm::clock_windows;
use crate::number::MAX_COUNT;
use crate::record::{Counts, Record, Tag};

/// The most windows that a record has: the current one and 60 before it.
const MAX_WINDOWS: usize = 61;

impl Rate {
    /// Returns a record of this rate with the counts that `others` prove at `now` (microseconds), or `None`
    /// if they prove nothing. Several records show the same requests, so each window gets the largest count.
    #[must_use]
    pub fn seeded(&self, others: &[Record], now: u64) -> Option<Record> {
        let tag = self.tag();
        if !tag.has_clock_windows() {
            return None;
        }
        let mut proven = [0; MAX_WINDOWS];
        for other in others.iter().filter(|other| other.tag.has_clock_windows() && other.tag != tag) {
            let counts = proven_by(other, tag, now / 1000);
            proven.iter_mut().zip(counts).for_each(|(most, count)| *most = count.max(*most));
        }
        if proven.iter().all(|&count| count == 0) {
            return None;
        }
        let mut record = Record::empty(tag, now / 1000 * 1000);
        (record.current, record.previous) = (proven[0], proven[1]);
        record.tail.iter_mut().zip(&proven[2..]).for_each(|(to, &count)| *to = count);
        Some(record)
    }
}

/// Returns the counts, newest first, that `other` proves for the windows of a record with `tag` at `now`
/// (milliseconds).
fn proven_by(other: &Record, tag: Tag, now: u64) -> [u64; MAX_WINDOWS] {
    let mut sums = [0u64; MAX_WINDOWS];
    let (length, windows) = (tag.window_millis(), tag.previous_windows());
    let newest = now / length;
    let (other_length, other_windows) = (other.tag.window_millis(), other.tag.previous_windows());
    // A record that is far ahead proves what it will hold after it is rebased. One that is only a little
    // ahead proves nothing; nor does one so close to the epoch that its windows would begin before it.
    let rolled =
        (other.window > now / other_length).then(|| clock_windows::roll(other.clone(), now * 1000).0);
    let other = rolled.as_ref().unwrap_or(other);
    if other.window > now / other_length || other.window < other_windows {
        return sums;
    }
    for n in 0..=other_windows {
        let count = Counts(other).get(n).min(MAX_COUNT);
        let begin = (other.window - n) * other_length;
        let Some(index) = newest.checked_sub(begin / length) else { continue };
        // In the new record's newest window an end after that window's does not matter: nothing has been
        // counted after now.
        let is_within = index == 0 || begin + other_length <= (newest - index + 1) * length;
        if index <= windows && is_within {
            sums[index as usize] += count;
        }
    }
    sums.map(|sum| sum.min(MAX_COUNT))
}

#[cfg(test)]
mod tests;
