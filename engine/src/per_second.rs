//! Chooses a few events of each second, because clients can cause any number of them.

use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

/// Lines in the log in a second.
pub type LogSampler = PerSecond<3>;

/// Bits of the number of events.
const BITS: u32 = 8;

static START: LazyLock<Instant> = LazyLock::new(Instant::now);

/// Time in seconds after which a source of events is quiet, if none of its events was chosen.
const QUIET: u64 = 10;

/// When an event of one source, such as a limit, was last chosen.
#[derive(Debug, Default)]
pub(crate) struct LastChosen {
    /// One more than the second since the start; 0 for never.
    second: AtomicU64,
}

impl LastChosen {
    fn is_quiet(&self, second: u64) -> bool {
        let chosen = self.second.load(Ordering::Relaxed);
        chosen == 0 || chosen + QUIET <= second
    }
}

/// Chooses up to `N` events of one kind in each second, at most 255.
#[derive(Debug, Default)]
pub struct PerSecond<const N: u64> {
    /// The second since the start, and the number of chosen events in it.
    second: AtomicU64,
    /// Number of events since the last chosen one.
    left_out: AtomicU64,
}

impl<const N: u64> PerSecond<N> {
    /// Returns the number of events since the last chosen one, if this one is chosen. Otherwise it counts the event.
    #[must_use]
    pub fn take(&self) -> Option<u64> {
        self.take_in(START.elapsed().as_secs(), N)
    }

    /// Does the same for an event of a source, in the second of `now`. The last place of a second is for quiet sources, so that a
    /// loud one does not displace all others.
    pub(crate) fn take_of(&self, source: &LastChosen, now: Instant) -> Option<u64> {
        self.take_of_in(now.saturating_duration_since(*START).as_secs(), source)
    }

    fn take_of_in(&self, second: u64, source: &LastChosen) -> Option<u64> {
        let places = if source.is_quiet(second) { N } else { N.saturating_sub(1) };
        let left_out = self.take_in(second, places)?;
        source.second.store(second + 1, Ordering::Relaxed);
        Some(left_out)
    }

    fn take_in(&self, second: u64, places: u64) -> Option<u64> {
        let next = |before: u64| match before >> BITS >= second {
            true if before & ((1 << BITS) - 1) >= places => None,
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
        let lines = |second: u64| (0..5).map(|_| log.take_in(second, 3)).collect::<Vec<_>>();
        assert_eq!(lines(7), [Some(0), Some(0), Some(0), None, None]);
        assert_eq!(lines(8), [Some(2), Some(0), Some(0), None, None]);
        assert_eq!(lines(90), [Some(2), Some(0), Some(0), None, None]);
    }

    #[test]
    fn a_loud_source_leaves_the_last_event_of_a_second_to_a_quiet_one() {
        let log = LogSampler::default();
        let [loud, other, quiet] = [(); 3].map(|()| LastChosen::default());
        let lines =
            |source, second: u64| std::iter::from_fn(|| log.take_of_in(second, source)).take(9).count();
        // In the first second nothing is known of it.
        assert_eq!((lines(&loud, 0), lines(&quiet, 0)), (2, 1));
        assert_eq!((lines(&loud, 5), lines(&quiet, 5), lines(&other, 5)), (2, 0, 1));
        assert_eq!((lines(&loud, 11), lines(&quiet, 11)), (2, 1));
    }
}
