//! The state of one rate for one key.

use super::kind::Kind;
use super::tag::Tag;

/// The state of one rate for one key.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Record {
    /// Kind, number of windows and period.
    pub tag: Tag,
    /// Index of the newest window, which is instant / window length. For other kinds an instant in
    /// milliseconds.
    pub window: u64,
    /// Count of the newest window. Other algorithms use it for a number of their own.
    pub current: u64,
    /// Count of the window before the newest. Other algorithms use it for a number of their own; 0 if unused.
    pub previous: u64,
    /// Times at which a soft rate went over its number.
    pub overrun: Overrun,
    /// Counts of the earlier windows, newest first; the instants of a log; the holders of a concurrency
    /// limit; the reservations of a ledger.
    pub tail: Vec<u64>,
}

/// Times at which a soft rate went over its number, in milliseconds; both fields are 0 if it never did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Overrun {
    /// Time of the first request above the number.
    pub since: u64,
    /// End of the window of the last request above the number.
    pub last: u64,
}

impl Record {
    /// Returns an empty record at `now` (microseconds).
    #[must_use]
    #[inline]
    pub fn empty(tag: Tag, now: u64) -> Self {
        let window = match tag.kind() {
            Some(
                Kind::Log | Kind::Arrival | Kind::WarmUp | Kind::Holders | Kind::Block | Kind::Reservations,
            ) => 0,
            Some(Kind::FirstRequest) => now / 1000,
            _ => now / (tag.window_millis() * 1000),
        };
        let tail = vec![0; (tag.previous_windows() as usize).saturating_sub(1)];
        Self { tag, window, current: 0, previous: 0, overrun: Overrun::default(), tail }
    }
}

impl Record {
    /// Reports whether this is a record with a list that is empty, which tells nothing.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        // Without denials, a record of a block may have the end of the block.
        let has_more = self.tag.kind() == Some(Kind::Block) && self.window > 0;
        self.tag.has_view() && self.tail.is_empty() && !has_more
    }
}

impl Overrun {
    /// Moves both times back to `millis` if they are later, because the clock was wrong.
    #[inline]
    pub(crate) fn rebase(&mut self, millis: u64) {
        self.since = self.since.min(millis);
        self.last = self.last.min(millis);
    }
}

/// The counts of a record of windows, newest first.
pub(crate) struct Counts<'a>(pub(crate) &'a Record);

impl Counts<'_> {
    pub(crate) fn get(&self, index: u64) -> u64 {
        match index {
            0 => self.0.current,
            1 => self.0.previous,
            _ => self.0.tail.get(index as usize - 2).copied().unwrap_or(0),
        }
    }
}
