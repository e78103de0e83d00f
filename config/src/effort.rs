//! The effort that a request may cause beyond that of a plain one. A policy has many conditions, and a client could write a
//! request in which each of them takes long: thousands of parameters, a path that can be read in a hundred ways, a value of
//! many kilobytes against every regular expression. What this costs is bounded by the request, not by the request times the
//! conditions.

use std::cell::Cell;

/// The units of effort, each about a byte that is looked at, which a request may cause. Thirty regular expressions may read a header of
/// 4 KiB.
const MOST: u32 = 128 << 10;
/// Number of bytes of a text that cost nothing: those of a plain request.
const FREE: usize = 512;
/// Units for a comparison that a plain request would not need.
const COMPARISON: usize = 16;

/// Units for hashing an octet by SHA-256, and octets that are hashed at least.
const HASHING: usize = 3;
const BLOCK: usize = 64;

/// Units for finding the values of a name.
pub(crate) const LOOK_UP: usize = 16;

/// Notes work, each unit about a byte that is looked at, so that tests can count it.
#[inline]
pub(crate) fn note(units: usize) {
    #[cfg(test)]
    WORK.with(|work| work.set(work.get() + units));
    #[cfg(not(test))]
    let _ = units;
}

#[cfg(test)]
thread_local! {
    /// The work of this thread.
    pub(crate) static WORK: Cell<usize> = const { Cell::new(0) };
}

/// The effort that is left to a request.
#[derive(Debug)]
pub struct Effort(Cell<u32>);

impl Default for Effort {
    fn default() -> Self {
        Self(Cell::new(MOST))
    }
}

impl Effort {
    /// Takes the effort of looking at all of a text, and reports whether there was enough. `is_first` tells whether a plain
    /// request would have such a text too.
    #[inline]
    pub fn read(&self, length: usize, is_first: bool) -> bool {
        let has_effort = match is_first {
            true => length <= FREE || self.spend(length - FREE),
            false => self.spend(COMPARISON + length),
        };
        note(if has_effort { length } else { 1 });
        has_effort
    }

    /// Takes the effort of hashing a text, and reports whether there was enough. `is_first` tells whether a plain request would have such
    /// a text too.
    #[inline]
    pub fn hash(&self, length: usize, is_first: bool) -> bool {
        let has_effort = match is_first {
            true => length <= FREE || self.spend(HASHING * (length - FREE)),
            false => self.spend(COMPARISON + HASHING * (BLOCK + length)),
        };
        note(if has_effort { HASHING * (BLOCK + length) } else { 1 });
        has_effort
    }

    /// Takes the effort of some comparisons that a plain request would not need, and reports whether there was enough.
    #[inline]
    pub fn compare(&self, comparisons: usize) -> bool {
        let has_effort = self.spend(COMPARISON.saturating_mul(comparisons));
        note(if has_effort { COMPARISON * comparisons } else { 1 });
        has_effort
    }

    fn spend(&self, units: usize) -> bool {
        let left = u32::try_from(units).ok().and_then(|units| self.0.get().checked_sub(units));
        self.0.set(left.unwrap_or(0));
        left.is_some()
    }
}
