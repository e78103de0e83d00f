//! Counts occurrences that somebody has to be told about, and tells whether there have been many of late.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Number of occurrences within [`WINDOW`] that are many.
const MANY: u64 = 100;
/// Time in which occurrences are compared with [`MANY`], and for which they are told afterwards.
const WINDOW: Duration = Duration::from_secs(10 * 60);

/// A number of occurrences.
#[derive(Debug, Default)]
pub struct Occurrences {
    total: AtomicU64,
    window: Mutex<Option<Window>>,
}

#[derive(Debug, Clone, Copy)]
struct Window {
    began: Instant,
    /// Number of occurrences before it.
    before: u64,
    /// Whether there were many in the window before.
    were_many: bool,
}

impl Occurrences {
    /// Counts one.
    pub fn count(&self) {
        self.total.fetch_add(1, Relaxed);
    }

    /// Returns the number of all.
    #[must_use]
    pub fn total(&self) -> u64 {
        self.total.load(Relaxed)
    }

    /// Reports whether there have been at least 100 in a window of ten minutes, in this one or in the one before. Call it more often than
    /// once in a window.
    pub fn are_many(&self, now: Instant) -> bool {
        let mut window = self.window.lock().unwrap_or_else(PoisonError::into_inner);
        let total = self.total();
        let Window { began, before, were_many } =
            *window.get_or_insert(Window { began: now, before: 0, were_many: false });
        let are_many = total - before >= MANY;
        if now.saturating_duration_since(began) >= WINDOW {
            *window = Some(Window { began: now, before: total, were_many: are_many });
        }
        are_many || were_many
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn many_are_told_until_a_window_has_passed_without() {
        let (occurrences, start) = (Occurrences::default(), Instant::now());
        let told = |minutes: u64| occurrences.are_many(start + Duration::from_secs(60 * minutes));
        let count = |number| (0..number).for_each(|_| occurrences.count());
        count(99);
        assert!(!told(0));
        count(1);
        assert!(told(1) && told(10), "in this window");
        count(99);
        assert!(told(11) && told(20), "in the window before");
        assert!(!told(21), "99 in ten minutes are few");
        assert_eq!(occurrences.total(), 199);
    }
}
