//! Chooses a few events of each second for the log, because clients can cause any number of them.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Number of lines in a second.
const PER_SECOND: u64 = 3;
/// Bits of the number of lines.
const BITS: u32 = 8;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Chooses the events of one kind that are logged.
#[derive(Debug, Default)]
pub(crate) struct LogSampler {
    /// The second since the start, and the number of lines in it.
    second: AtomicU64,
    /// Number of events since the last line.
    left_out: AtomicU64,
}

impl LogSampler {
    /// Returns the number of events since the last line, if another one may be logged now. Otherwise it counts the event.
    pub(crate) fn take(&self) -> Option<u64> {
        self.take_in(START.elapsed().as_secs())
    }

    fn take_in(&self, second: u64) -> Option<u64> {
        let next = |before: u64| match before >> BITS >= second {
            true if before & ((1 << BITS) - 1) >= PER_SECOND => None,
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
    fn three_events_of_a_second_are_logged_and_the_others_counted() {
        let log = LogSampler::default();
        let lines = |second: u64| (0..5).map(|_| log.take_in(second)).collect::<Vec<_>>();
        assert_eq!(lines(7), [Some(0), Some(0), Some(0), None, None]);
        assert_eq!(lines(8), [Some(2), Some(0), Some(0), None, None]);
        assert_eq!(lines(90), [Some(2), Some(0), Some(0), None, None]);
    }
}
