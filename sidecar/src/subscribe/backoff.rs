//! How long to wait before trying again: full jitter, so that a thousand sidecars do not come back at once.

use std::time::Duration;

use rand::Rng as _;

/// The bound of the first wait, and of all.
const FIRST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(5);

/// A row of failures.
#[derive(Debug, Default)]
pub(crate) struct Backoff {
    failures: u32,
}

impl Backoff {
    /// The wait after one more failure.
    pub(crate) fn next(&mut self) -> Duration {
        let bound = FIRST.saturating_mul(1 << self.failures.min(10)).min(LONGEST);
        self.failures += 1;
        rand::rng().random_range(Duration::ZERO..=bound)
    }
}
