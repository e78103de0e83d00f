//! Waits before another attempt to reach the operator: full jitter, so that a thousand sidecars do not return
//! together.

use std::time::Duration;

use rand::Rng as _;

/// Upper bound of the first wait.
const FIRST: Duration = Duration::from_millis(100);
/// Upper bound of all waits.
const MAX: Duration = Duration::from_secs(5);
/// Minimum for the bounds of a sidecar that had a session: all sidecars lose theirs together when the leader
/// ends.
const SPREAD: Duration = Duration::from_secs(1);

/// A sequence of failures.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
    /// Whether there ever was a session.
    was_connected: bool,
}

impl Backoff {
    /// Records that a session was opened.
    pub(crate) fn connected(&mut self) {
        self.was_connected = true;
    }

    /// Records that an event of a session was applied.
    pub(crate) fn succeeded(&mut self) {
        self.failures = 0;
    }

    /// Records a failure and returns the wait after it.
    pub(crate) fn next(&mut self) -> Duration {
        let bound = self.bound();
        self.failures = self.failures.saturating_add(1);
        rand::rng().random_range(Duration::ZERO..=bound)
    }

    fn bound(&self) -> Duration {
        let bound = FIRST.saturating_mul(1 << self.failures.min(10)).min(MAX);
        if self.was_connected { bound.max(SPREAD) } else { bound }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sidecars_that_lose_their_sessions_together_return_spread_out() {
        let mut backoff = Backoff::default();
        assert_eq!(backoff.bound(), FIRST);
        for _ in 0..20 {
            assert!(backoff.next() <= MAX);
        }
        assert_eq!(backoff.bound(), MAX);
        backoff.connected();
        assert_eq!(backoff.bound(), MAX, "a session without events is no success");
        backoff.succeeded();
        assert_eq!(backoff.bound(), SPREAD);
        assert!((0..100).any(|_| {
            backoff.succeeded();
            backoff.next() > FIRST
        }));
    }
}
