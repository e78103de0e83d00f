//! Refunds of a charge: the request was charged, but is not forwarded.

use sluice_store::{PlannedCounter, Reservation};
use tokio::runtime::Handle;

use crate::config::limiter_handle::LimiterHandle;

/// A charge to give back.
#[derive(Debug)]
pub(crate) struct Refund {
    pub(crate) limiter: LimiterHandle,
    pub(crate) counter: PlannedCounter,
    pub(crate) reservation: Reservation,
}

impl Refund {
    /// Gives the charge back in a task of its own, which ends even if the request does. Drops `after` then.
    pub(crate) fn start(self, after: impl Send + 'static) {
        let Self { limiter, counter, reservation } = self;
        if reservation == Reservation::Nothing {
            return;
        }
        if let Ok(runtime) = Handle::try_current() {
            runtime.spawn(async move {
                let delta = i64::try_from(counter.cost).map_or(i64::MIN, |cost| -cost);
                // Without an answer the charge may stay, as if the request had been admitted.
                let _ = limiter.settle(&counter, reservation, delta).await;
                drop(after);
            });
        }
    }
}
