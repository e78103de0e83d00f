//! How long to wait before trying again: full jitter, so that a thousand sidecars do not come back at once.

use std::time::Duration;

use rand::Rng as _;

/// The bound of the first wait, and of all.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);
/// The bound of every wait of those that had a stream, at least: all of them lose it at once when the leader ends.
const SPREAD: Duration = Duration::from_secs(2);

/// A row of failures.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    /// Whether there ever was a stream.
    established: bool,
}

impl Backoff {
    /// There is a stream.
    pub(crate) fn established(&mut self) {
        self.established = true;
    }

    /// A stream did what it is for.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// The wait after one more failure.
    pub(crate) fn next(&mut self) -> Duration {
        let bound = self.bound();
        self.failures = self.failures.saturating_add(1);
        rand::rng().random_range(Duration::ZERO..=bound)
    }

    fn bound(&self) -> Duration {
        let bound = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        if self.established { bound.max(SPREAD) } else { bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_who_lose_a_stream_together_come_back_spread_out() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.bound(), FIRST);
        for _ in 0..20 {
            assert!(backoff.next() <= LONGEST);
        }
        assert_eq!(backoff.bound(), LONGEST);
        backoff.established();
        assert_eq!(backoff.bound(), LONGEST, "a stream that says nothing is no success");
        backoff.succeeded();
        assert_eq!(backoff.bound(), SPREAD);
        assert!((0..100).any(|_| {
            backoff.succeeded();
            backoff.next() > FIRST
        }));
    }
}
