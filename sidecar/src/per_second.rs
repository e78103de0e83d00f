//! Chooses a few events of each second, because clients can cause any number of them.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Lines in the log in a second.
pub(crate) type LogSampler = PerSecond<3>;

/// Bits of the number of events.
const BITS: u32 = 8;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Chooses up to `N` events of one kind in each second, at most 255.
#[derive(Debug, Default)]
pub(crate) struct PerSecond<const N: u64> {
    /// The second since the start, and the number of chosen events in it.
    second: AtomicU64,
    /// Number of events since the last chosen one.
    left_out: AtomicU64,
}

impl<const N: u64> PerSecond<N> {
    /// Returns the number of events since the last chosen one, if this one is chosen. Otherwise it counts the event.
    pub(crate) fn take(&self) -> Option<u64> {
        self.take_in(START.elapsed().as_secs())
    }

    fn take_in(&self, second: u64) -> Option<u64> {
        let next = |before: u64| match before >> BITS >= second {
            true if before & ((1 << BITS) - 1) >= N => None,
            // A thread may have read the clock before the second changed.
            true => Some(before + 1),
            false => Some(second << BITS | 1),
        };
        match self.second.fetch_update(Ordering::Relaxed, Ordering::Relaxed, next) {
            Ok(_) => Some(self.left_out.swap(0, Ordering::Relaxed)),
            Err(_) => {
                self.left_out.fetch_add(1, Ordering::Relaxed);
                None
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn three_events_of_a_second_are_chosen_and_the_others_counted() {
        let log = LogSampler::default();
        let lines = |second: u64| (0..5).map(|_| log.take_in(second)).collect::<Vec<_>>();
        assert_eq!(lines(7), [Some(0), Some(0), Some(0), None, None]);
        assert_eq!(lines(8), [Some(2), Some(0), Some(0), None, None]);
        assert_eq!(lines(90), [Some(2), Some(0), Some(0), None, None]);
    }
}
