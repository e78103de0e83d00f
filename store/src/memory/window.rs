//! A check of one counter of a hard rate with the sliding window of two slots or the fixed window, as most are: what
//! `decide` says of it, in one go and on the entry itself, as long as the entry's slot is the current one. The tests
//! compare it with `decide`.

use sluice_limiter::{Algorithm, Alignment, Bound, Decision, Rate, SubWindows};

use super::entry::{Entry, Id, Layout};
use crate::check::Answer;

/// What counts of the slot before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Before {
    Nothing,
    Share,
    All,
}

/// A plain window.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Window {
    requests: u64,
    /// Milliseconds.
    length: u64,
    /// Microseconds.
    micros: u64,
    /// How long a slot still counts when it is over, in microseconds.
    after: u64,
    /// How long after the slot's begin there is room for one, if all requests were in it; in microseconds.
    full: u64,
    before: Before,
    layout: Layout,
}

impl Window {
    pub(super) fn of(rate: &Rate, layout: Layout) -> Option<Self> {
        let before = match rate.algorithm {
            Algorithm::FixedWindow(Alignment::Clock) => Before::Nothing,
            Algorithm::SlidingWindowCounter { slots: SubWindows::ONE, bound: Bound::Estimate } => {
                Before::Share
            }
            Algorithm::SlidingWindowCounter { slots: SubWindows::ONE, bound: Bound::Guaranteed } => {
                Before::All
            }
            _ => return None,
        };
        let (requests, length, micros) = (rate.requests.get(), rate.period.millis(), rate.period.micros());
        let after = if before == Before::Nothing { 0 } else { micros };
        // What is admitted has to fit in its half of an entry.
        let plain = rate.soft.is_none() && requests <= Entry::MAX_CURRENT;
        let window = Self { requests, length, micros, after, full: 0, before, layout };
        let full = window.retry_after(requests, 0, 0, 1).unwrap_or(0);
        plain.then_some(Self { full, ..window })
    }

    /// What the entry of a counter holds if it counts by this rate.
    #[inline]
    pub(super) fn tagged(&self, id: Id) -> Id {
        id.tagged(&self.layout)
    }

    /// How much of the entry's slot is over at `now`, in microseconds; `None` if it is not the current one.
    #[inline]
    pub(super) fn spent(&self, entry: &Entry, now: u64) -> Option<u64> {
        // Before the slot's begin it is larger than any slot.
        let spent = now.wrapping_sub(entry.instant() * 1000);
        (spent < self.micros).then_some(spent)
    }

    /// Decides, and charges. To be asked of an entry that is narrow.
    #[inline]
    pub(super) fn check(&self, entry: &mut Entry, spent: u64, cost: u64, now: u64) -> Answer {
        let (current, previous) = entry.halves();
        let used = current + if previous == 0 { 0 } else { self.share(previous, spent) };
        let left = self.requests.saturating_sub(used);
        let rest = self.micros - spent;
        // What most are told, with the fewest questions asked. A cost of 0 is none of it.
        if cost.wrapping_sub(1) < left {
            entry.charge(cost);
            return Answer::of_one(self.decision(true, left - cost, rest + self.after, None), now);
        }
        if cost == 1 && used == self.requests && previous == 0 && used > 0 {
            let wait = self.full - spent;
            return Answer::of_one(self.decision(false, 0, rest + self.after, Some(wait)), now);
        }
        self.check_further(entry, spent, cost, now)
    }

    #[inline(never)]
    fn check_further(&self, entry: &mut Entry, spent: u64, cost: u64, now: u64) -> Answer {
        let (current, previous) = entry.halves();
        let left = self.requests.saturating_sub(current + self.share(previous, spent));
        let room = cost.max(1) <= left;
        let (left, retry_after) = if room {
            entry.charge(cost);
            (left - cost, None)
        } else {
            (left, self.retry_after(current, previous, spent, cost.max(1)))
        };
        let rest = self.micros - spent;
        let reset = if current > 0 || (room && cost > 0) {
            rest + self.after
        } else if previous > 0 && self.before != Before::Nothing {
            rest
        } else {
            0
        };
        Answer::of_one(self.decision(room, left, reset, retry_after), now)
    }

    /// How much counts of the slot before.
    #[inline(never)]
    fn share(&self, previous: u64, spent: u64) -> u64 {
        match self.before {
            Before::Nothing => 0,
            Before::All => previous,
            Before::Share => ceil_share(previous, self.length - spent / 1000, self.length),
        }
    }

    #[inline]
    fn decision(&self, admitted: bool, remaining: u64, reset: u64, retry_after: Option<u64>) -> Decision {
        Decision {
            admitted,
            limit: self.requests,
            period: self.length,
            remaining,
            reset,
            retry_after,
            delay: 0,
        }
    }

    /// Microseconds until there is room for `cost`, for which there is none now.
    fn retry_after(&self, current: u64, previous: u64, spent: u64, cost: u64) -> Option<u64> {
        let spare = self.requests.checked_sub(cost)?;
        // How many milliseconds after the slot's begin no more than the spare is used.
        let at = match self.before {
            Before::Nothing => self.length,
            Before::All if current <= spare => self.length,
            Before::All => 2 * self.length,
            Before::Share if current <= spare => {
                self.length - floor_share(spare - current, self.length, previous)
            }
            Before::Share => 2 * self.length - floor_share(spare, self.length, current),
        };
        Some((at * 1000).saturating_sub(spent))
    }
}

/// ceil(count * part / whole).
#[inline]
fn ceil_share(count: u64, part: u64, whole: u64) -> u64 {
    match count.checked_mul(part) {
        Some(product) => product.div_ceil(whole),
        None => (u128::from(count) * u128::from(part)).div_ceil(u128::from(whole)) as u64,
    }
}

/// floor(count * length / whole), for count < whole.
fn floor_share(count: u64, length: u64, whole: u64) -> u64 {
    match count.checked_mul(length) {
        Some(product) => product / whole,
        None => (u128::from(count) * u128::from(length) / u128::from(whole)) as u64,
    }
}
