//! A plain window: a rate without a soft limit that is a fixed window, or a sliding window of the current and
//! the previous window. It is decided on the cell itself as long as the cell's window is the current one.

use sluice_limiter::{Decision, PreviousPart, Rate, Shape};

use crate::memory::cell::{CounterId, Layout, TableCell};

/// The part of a decision that is not the same for all checks of a rate.
#[derive(Debug, Clone, Copy)]
pub(in crate::memory) struct Verdict {
    pub(in crate::memory) admitted: bool,
    left: u64,
    reset: u64,
    /// Retry-after in microseconds, if the check is denied and may be admitted later.
    wait: Option<u64>,
}

/// A plain window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(in crate::memory) struct Window {
    requests: u64,
    /// Length in milliseconds.
    length: u64,
    /// Length in microseconds.
    micros: u64,
    /// Duration for which a window still counts after its end, in microseconds.
    after: u64,
    /// Time from the start of a full window until one request fits, in microseconds.
    full: u64,
    previous_part: PreviousPart,
    layout: Layout,
}

impl Window {
    pub(super) fn of(rate: &Rate, layout: Layout) -> Option<Self> {
        let Some(Shape::Windows(previous_part)) = rate.shape() else { return None };
        let (requests, length, micros) = (rate.requests.get(), rate.period.millis(), rate.period.micros());
        let after = if previous_part == PreviousPart::None { 0 } else { micros };
        // Every admitted count must fit into its half of a cell.
        let fits = requests <= TableCell::MAX_CURRENT;
        let window = Self { requests, length, micros, after, full: 0, previous_part, layout };
        let full = window.retry_after(requests, 0, 0, 1).unwrap_or(0);
        fits.then_some(Self { full, ..window })
    }

    /// Returns the id in the cell of a counter with this rate.
    #[inline]
    pub(in crate::memory) fn tagged(&self, id: CounterId) -> CounterId {
        id.tagged(&self.layout)
    }

    /// Returns the time since the start of the cell's window, in microseconds, or `None` if it is not the
    /// current window.
    #[inline]
    pub(in crate::memory) fn elapsed(&self, cell: &TableCell, now: u64) -> Option<u64> {
        // Before the start of the window the difference wraps and exceeds any window.
        let elapsed = now.wrapping_sub(cell.instant() * 1000);
        (elapsed < self.micros).then_some(elapsed)
    }

    /// Returns the length of the window, in microseconds.
    #[inline]
    pub(in crate::memory) fn micros(&self) -> u64 {
        self.micros
    }

    /// Returns the number of requests left, or `None` if the counts exceed the limit or a product overflows.
    #[inline]
    pub(in crate::memory) fn left(&self, current: u64, previous: u64, elapsed: u64) -> Option<u64> {
        let added = match self.previous_part {
            _ if previous == 0 => 0,
            PreviousPart::None => 0,
            PreviousPart::All => previous,
            PreviousPart::Overlap => {
                previous.checked_mul(self.length - elapsed / 1000)?.div_ceil(self.length)
            }
        };
        self.requests.checked_sub(current + added)
    }

    /// Returns the verdict of an admitted check after its charge.
    #[inline]
    pub(in crate::memory) fn admitted(&self, left: u64, elapsed: u64) -> Verdict {
        Verdict { admitted: true, left, reset: self.micros - elapsed + self.after, wait: None }
    }

    /// Returns the verdict of a check of cost 1 when the current window is full and the previous one is
    /// empty.
    #[inline]
    pub(in crate::memory) fn full(&self, elapsed: u64) -> Verdict {
        let reset = self.micros - elapsed + self.after;
        Verdict { admitted: false, left: 0, reset, wait: Some(self.full - elapsed) }
    }

    /// Decides a check by the counts of the current and the previous window. The caller charges it.
    #[inline]
    pub(in crate::memory) fn decide(&self, current: u64, previous: u64, elapsed: u64, cost: u64) -> Verdict {
        let used = current + if previous == 0 { 0 } else { self.counted_of(previous, elapsed) };
        let left = self.requests.saturating_sub(used);
        // The most frequent case, with the fewest comparisons. A cost of 0 wraps and is excluded.
        if cost.wrapping_sub(1) < left {
            return self.admitted(left - cost, elapsed);
        }
        if cost == 1 && used == self.requests && previous == 0 && used > 0 {
            return self.full(elapsed);
        }
        // Each number is computed on its own, so that none goes through memory, where a load would stall on a
        // recent store.
        let admitted = cost.max(1) <= left;
        let reset = self.reset(current + if admitted { cost } else { 0 }, previous, elapsed);
        if admitted {
            Verdict { admitted, left: left - cost, reset, wait: None }
        } else {
            let wait = self.retry_after(current, previous, elapsed, cost.max(1));
            Verdict { admitted, left, reset, wait }
        }
    }

    /// Returns the time until neither count counts any more, in microseconds.
    #[inline(never)]
    fn reset(&self, current: u64, previous: u64, elapsed: u64) -> u64 {
        let rest = self.micros - elapsed;
        if current > 0 {
            rest + self.after
        } else if previous > 0 && self.previous_part != PreviousPart::None {
            rest
        } else {
            0
        }
    }

    /// Returns the whole decision.
    #[inline]
    pub(in crate::memory) fn decision(&self, verdict: Verdict) -> Decision {
        let Verdict { admitted, left, reset, wait } = verdict;
        Decision {
            admitted,
            limit: self.requests,
            period: self.length,
            remaining: left,
            reset,
            retry_after: wait,
            delay: 0,
        }
    }

    /// Returns the part of the previous window's count that counts now.
    #[inline(never)]
    fn counted_of(&self, previous: u64, elapsed: u64) -> u64 {
        match self.previous_part {
            PreviousPart::None => 0,
            PreviousPart::All => previous,
            PreviousPart::Overlap => ceil_ratio(previous, self.length - elapsed / 1000, self.length),
        }
    }

    /// Returns the time until a denied cost fits, in microseconds.
    #[inline(never)]
    fn retry_after(&self, current: u64, previous: u64, elapsed: u64, cost: u64) -> Option<u64> {
        let spare = self.requests.checked_sub(cost)?;
        // Milliseconds from the start of the window until no more than the spare is used.
        let at = match self.previous_part {
            PreviousPart::None => self.length,
            PreviousPart::All if current <= spare => self.length,
            PreviousPart::All => 2 * self.length,
            PreviousPart::Overlap if current <= spare => {
                self.length - floor_ratio(spare - current, self.length, previous)
            }
            PreviousPart::Overlap => 2 * self.length - floor_ratio(spare, self.length, current),
        };
        Some((at * 1000).saturating_sub(elapsed))
    }
}

/// Returns ceil(count * part / whole).
#[inline]
fn ceil_ratio(count: u64, part: u64, whole: u64) -> u64 {
    match count.checked_mul(part) {
        Some(product) => product.div_ceil(whole),
        None => (u128::from(count) * u128::from(part)).div_ceil(u128::from(whole)) as u64,
    }
}

/// Returns floor(count * length / whole), for count < whole.
fn floor_ratio(count: u64, length: u64, whole: u64) -> u64 {
    match count.checked_mul(length) {
        Some(product) => product / whole,
        None => (u128::from(count) * u128::from(length) / u128::from(whole)) as u64,
    }
}
