//! The memory store's time: microseconds since the Unix epoch, because windows are aligned to the epoch. A step of the system's time
//! shows at once. The algorithms tolerate it: time never runs backwards for a counter.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine's clock, or a manual one for tests.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<AtomicU64>>);

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self(None)
    }

    /// A clock that shows `millis` until [`Clock::advance`] moves it.
    #[must_use]
    pub fn manual(millis: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(millis * 1000))))
    }

    /// Advances a manual clock. Has no effect on the machine's clock.
    pub fn advance(&self, millis: u64) {
        self.advance_micros(millis * 1000);
    }

    /// Advances a manual clock by microseconds.
    pub fn advance_micros(&self, micros: u64) {
        if let Some(clock) = &self.0 {
            clock.fetch_add(micros, Ordering::SeqCst);
        }
    }

    /// Returns the microseconds since the Unix epoch.
    #[must_use]
    #[inline]
    pub fn now(&self) -> u64 {
        match &self.0 {
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |now| now.as_micros() as u64),
            Some(clock) => clock.load(Ordering::SeqCst),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manual_clock_moves_only_when_it_is_advanced() {
        let clock = Clock::manual(5);
        assert_eq!((clock.now(), clock.now()), (5_000, 5_000));
        clock.advance(1);
        clock.clone().advance_micros(1);
        assert_eq!(clock.now(), 6_001);
    }
}
