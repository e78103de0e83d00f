//! A check of one counter of a hard rate with the sliding window of two sub_windows or the fixed window, as most are: what
//! `decide` says of it, in one go and by what stands in the entry, as long as the entry's slot is the current one. The
//! tests compare it with `decide`.

use sluice_limiter::{Algorithm, Alignment, Bound, Decision, Rate, SubWindows};

use super::entry::{Entry, Id, Layout};
use crate::check::CheckResponse;

/// What counts of the slot before.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Before {
    Nothing,
    Share,
    All,
}

/// What a check is told, but for what all are.
#[derive(Debug, Clone, Copy)]
pub(super) struct Verdict {
    pub(super) admitted: bool,
    left: u64,
    reset: u64,
    /// Microseconds, if it is denied and any wait mends it.
    wait: Option<u64>,
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
            Algorithm::SlidingWindowCounter { sub_windows: SubWindows::ONE, bound: Bound::Estimate } => {
                Before::Share
            }
            Algorithm::SlidingWindowCounter { sub_windows: SubWindows::ONE, bound: Bound::Guaranteed } => {
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

    /// How long a slot is, in microseconds.
    #[inline]
    pub(super) fn micros(&self) -> u64 {
        self.micros
    }

    /// How many more are admitted by these counts; `None` if they are too many, or too large to be multiplied.
    #[inline]
    pub(super) fn left(&self, current: u64, previous: u64, spent: u64) -> Option<u64> {
        let before = match self.before {
            _ if previous == 0 => 0,
            Before::Nothing => 0,
            Before::All => previous,
            Before::Share => previous.checked_mul(self.length - spent / 1000)?.div_ceil(self.length),
        };
        self.requests.checked_sub(current + before)
    }

    /// What an admitted check is told that leaves so many and has charged.
    #[inline]
    pub(super) fn admitted(&self, left: u64, spent: u64) -> Verdict {
        Verdict { admitted: true, left, reset: self.micros - spent + self.after, wait: None }
    }

    /// What a check of one is told when all requests are in the slot, and none in the one before.
    #[inline]
    pub(super) fn full(&self, spent: u64) -> Verdict {
        let reset = self.micros - spent + self.after;
        Verdict { admitted: false, left: 0, reset, wait: Some(self.full - spent) }
    }

    /// Decides by the counts of the slot and of the one before. Who is admitted has still to be charged.
    #[inline]
    pub(super) fn decide(&self, current: u64, previous: u64, spent: u64, cost: u64) -> Verdict {
        let used = current + if previous == 0 { 0 } else { self.share(previous, spent) };
        let left = self.requests.saturating_sub(used);
        // What most are told, with the fewest questions asked. A cost of 0 is none of it.
        if cost.wrapping_sub(1) < left {
            return self.admitted(left - cost, spent);
        }
        if cost == 1 && used == self.requests && previous == 0 && used > 0 {
            return self.full(spent);
        }
        // Number by number, so that nothing of it stands in memory: what is read there sooner than it has settled is waited for.
        let admitted = cost.max(1) <= left;
        let reset = self.reset(current + if admitted { cost } else { 0 }, previous, spent);
        if admitted {
            Verdict { admitted, left: left - cost, reset, wait: None }
        } else {
            let wait = self.retry_after(current, previous, spent, cost.max(1));
            Verdict { admitted, left, reset, wait }
        }
    }

    /// Microseconds until nothing of this counts.
    #[inline(never)]
    fn reset(&self, current: u64, previous: u64, spent: u64) -> u64 {
        let rest = self.micros - spent;
        if current > 0 {
            rest + self.after
        } else if previous > 0 && self.before != Before::Nothing {
            rest
        } else {
            0
        }
    }

    /// The answer that says so.
    #[inline]
    pub(super) fn answer(&self, verdict: Verdict, now: u64) -> CheckResponse {
        let Verdict { admitted, left, reset, wait } = verdict;
        let decision = Decision {
            admitted,
            limit: self.requests,
            period: self.length,
            remaining: left,
            reset,
            retry_after: wait,
            delay: 0,
        };
        CheckResponse::of_one(decision, now)
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

    /// Microseconds until there is room for `cost`, for which there is none now.
    #[inline(never)]
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
