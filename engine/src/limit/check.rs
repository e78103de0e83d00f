//! Passes a check to the limiter, and interprets the result if the store failed.

use sluice_store::{CheckOutcome, Limiter, OnStoreFailure, PlannedCounter, Reservation, Source, StoreError};

/// A check that was decided.
#[derive(Debug)]
pub(crate) struct Checked {
    pub(crate) outcome: CheckOutcome,
    /// Bit mask of the counters that neither the store nor local quota has counted: the store failed, and the
    /// `onStoreFailure` of their limits is `Allow`.
    pub(crate) uncounted: u64,
}

impl Checked {
    fn new(counters: &[PlannedCounter], outcome: CheckOutcome) -> Self {
        let mut uncounted = 0;
        if outcome.failure.is_some() {
            for (n, (counter, reservation)) in counters.iter().zip(&outcome.reservations).enumerate() {
                let admits = counter.limit.on_failure == OnStoreFailure::Allow;
                uncounted |= u64::from(admits && *reservation == Reservation::Nothing) << n;
            }
        }
        Self { outcome, uncounted }
    }

    /// Returns the store's failure as in `x-sluice-store-failure`, if the store was called and failed.
    pub(crate) fn failure(&self) -> Option<&'static str> {
        self.outcome.failure.as_ref().map(StoreError::as_str)
    }

    /// Reports whether local quota decided in place of a store that failed.
    pub(crate) fn by_local_quota(&self) -> bool {
        self.outcome.failure.is_some() && self.outcome.source == Source::LocalQuota
    }
}

/// Checks counters of one request together in their store.
///
/// # Errors
/// The store did not answer, and at least one limit denies in that case.
pub(crate) async fn check(limiter: &Limiter, counters: &[PlannedCounter]) -> Result<Checked, StoreError> {
    let outcome = limiter.check(counters).await?;
    Ok(Checked::new(counters, outcome))
}
