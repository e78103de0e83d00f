//! The time that a memory store counts in: microseconds since the Unix epoch, because windows are aligned to it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// The machine's clock, or one that a test moves by hand.
#[derive(Debug, Clone, Default)]
pub struct Clock(Option<Arc<AtomicU64>>);

impl Clock {
    /// The machine's clock.
    #[must_use]
    pub fn system() -> Self {
        Self(None)
    }

    /// A clock that stands still at `millis` until [`Clock::advance`].
    #[must_use]
    pub fn manual(millis: u64) -> Self {
        Self(Some(Arc::new(AtomicU64::new(millis * 1000))))
    }

    /// Moves a manual clock; does nothing to the machine's.
    pub fn advance(&self, millis: u64) {
        if let Some(clock) = &self.0 {
            clock.fetch_add(millis * 1000, Ordering::SeqCst);
        }
    }

    /// Moves a manual clock by microseconds.
    pub fn advance_micros(&self, micros: u64) {
        if let Some(clock) = &self.0 {
            clock.fetch_add(micros, Ordering::SeqCst);
        }
    }

    /// Microseconds since the Unix epoch.
    #[must_use]
    pub fn now(&self) -> u64 {
        match &self.0 {
            Some(clock) => clock.load(Ordering::SeqCst),
            None => SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_micros() as u64),
        }
    }
}
