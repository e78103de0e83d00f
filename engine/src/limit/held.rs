//! The slots of shared concurrency limits and the permits of adaptive ones that a request holds until it
//! ends, and the charges that its outcome corrects.
//!
//! A slot is acquired by the same check that charges the rates, so either all of them are charged or none. A
//! permit is acquired before that check, so that a request that is shed was charged nothing. Both are
//! released on a denial, and when the application has finished the request: also if the client goes away, but then
//! for a limited time.

use std::sync::Arc;
use std::time::Duration;

use sluice_limiter::adaptive::SampleOutcome;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::limit::adaptive::{AdaptiveLimit, AdaptivePermit, Origin};
use crate::limit::settle::{Charges, UploadMeter};
use crate::limit::slots::Slot;

/// Everything that a request holds.
#[derive(Debug, Default)]
pub struct Held {
    /// Slots of concurrency limits.
    pub slots: Vec<Slot>,
    pub(crate) permits: SmallVec<[AdaptivePermit; 1]>,
    /// Charges that the outcome corrects.
    pub charges: Charges,
    /// Longest time for which they are held when the client has left.
    pub abandoned_for: Duration,
}

/// The adaptive limits of a request that waits in a delay queue, each with the request's origin.
#[derive(Debug)]
pub(crate) struct PausedPermits(SmallVec<[(Arc<AdaptiveLimit>, Origin); 1]>);

impl Held {
    /// Reports whether the request holds no slot and no permit.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.slots.is_empty() && self.permits.is_empty()
    }

    /// Gives up the permits while the request waits in a delay queue, because it is not in flight there.
    /// Slots stay held: nothing could guarantee that they are free afterwards.
    pub(crate) fn pause(&mut self) -> PausedPermits {
        PausedPermits(self.permits.drain(..).map(AdaptivePermit::into_limit).collect())
    }

    /// Takes permits again after the wait. A request that was admitted is not shed any more.
    pub(crate) fn resume(&mut self, paused: &PausedPermits) {
        self.permits.extend(paused.0.iter().map(|(limit, from)| limit.acquire_again(*from)));
    }

    /// Notes that the request is being forwarded, and returns the meter of its body if its length is counted.
    pub fn forwarding(&mut self) -> Option<UploadMeter> {
        if !self.permits.is_empty() {
            let now = Instant::now();
            self.permits.iter_mut().for_each(|permit| permit.forwarding(now));
        }
        self.charges.forwarding()
    }

    /// Reports the result of forwarding to the adaptive limits.
    pub fn forwarded(&mut self, outcome: SampleOutcome) {
        self.permits.iter_mut().for_each(|permit| permit.forwarded(outcome));
    }
}
