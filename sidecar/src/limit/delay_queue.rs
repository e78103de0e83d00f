//! Requests that a leaky bucket admits wait for their admission time before they go to the application. A
//! client that goes away while it waits is refunded, so later requests wait less.

use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use sluice_limiter::Decision;
use sluice_store::{PlannedCounter, Reservation};
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::limit::active::LimitIndex;
use crate::limit::correction::Correction;
use crate::limit::status::RateLimitStatus;

/// Number of requests that may wait under one limit. Each holds a connection or a stream, and memory.
pub(crate) const MAX_WAITING: i64 = 1000;

/// The wait of an admitted request. Dropping it before the admission time refunds the request.
#[derive(Debug)]
pub(crate) struct Delay {
    until: Instant,
    charges: SmallVec<[Charge; 1]>,
}

/// A delay queue has no room for the request.
#[derive(Debug)]
pub(crate) struct QueueFull {
    pub(crate) limit: LimitIndex,
    /// Time that the request would have had to wait.
    pub(crate) wait: Duration,
    /// The store's time, in microseconds.
    pub(crate) at: u64,
}

impl Delay {
    /// Places an admitted request in the delay queues of its limits; `None` if it need not wait. `counters`
    /// are those of the check.
    ///
    /// # Errors
    /// A queue is full. All counters of the request are refunded.
    pub(crate) fn of(
        status: &RateLimitStatus,
        counters: &[PlannedCounter],
    ) -> Result<Option<Self>, QueueFull> {
        let delay = |decisions: &[Decision]| {
            Duration::from_micros(decisions.iter().map(|decision| decision.delay).max().unwrap_or(0))
        };
        let wait = delay(&status.response.decisions);
        if wait.is_zero() {
            return Ok(None);
        }
        let mut charges = SmallVec::<[Charge; 1]>::new();
        for (n, limit, decisions) in status.counted_with_position() {
            let Some(waiting) = &status.snapshot.limit(limit).metrics.waiting else { continue };
            if delay(decisions).is_zero() {
                continue;
            }
            let Some(waiter) = Waiter::enter(waiting) else {
                charges.into_iter().for_each(Charge::keep);
                for (n, limit, decisions) in status.counted_with_position() {
                    // Slots are released by their own guards.
                    if status.snapshot.limit(limit).concurrency.is_none() {
                        drop(Charge::new(status, counters, n, delay(decisions), None));
                    }
                }
                return Err(QueueFull { limit, wait, at: status.response.at });
            };
            charges.push(Charge::new(status, counters, n, delay(decisions), Some(waiter)));
        }
        Ok(Some(Self { until: Instant::now() + wait, charges }))
    }

    /// Waits until the admission time.
    pub(crate) async fn wait(self) {
        tokio::time::sleep_until(self.until).await;
        self.charges.into_iter().for_each(Charge::keep);
    }
}

/// A charge of a waiting request, with its entry in the queue. Dropping it refunds the charge and leaves the
/// queue.
#[derive(Debug)]
struct Charge {
    refund: Option<Correction>,
    waiter: Option<Waiter>,
}

impl Charge {
    fn new(
        status: &RateLimitStatus,
        counters: &[PlannedCounter],
        n: usize,
        delay: Duration,
        waiter: Option<Waiter>,
    ) -> Self {
        // A leaky bucket identifies its charges by their admission time.
        let delay = delay.as_micros() as u64;
        let refund = || {
            let reservation = match *status.reservations.get(n)? {
                Reservation::Store(at) => Reservation::Store(at + delay),
                Reservation::Overflow(at) => Reservation::Overflow(at + delay),
                Reservation::Local(at) => Reservation::Local(at + delay),
                Reservation::Nothing => return None,
            };
            let limiter = status.snapshot.limiter(*status.limits.get(n)?).clone();
            Some(Correction::refund(limiter, counters.get(n)?.clone(), reservation))
        };
        Self { refund: refund(), waiter }
    }

    /// Keeps the charge and leaves the queue.
    fn keep(mut self) {
        self.refund = None;
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        if let Some(refund) = self.refund.take() {
            refund.start(self.waiter.take());
        }
    }
}

/// An entry in the delay queue of a limit.
#[derive(Debug)]
struct Waiter(Gauge);

impl Waiter {
    /// Enters the queue, unless it is full. The gauge itself is the count, so that the metric and the bound
    /// cannot differ.
    fn enter(waiting: &Gauge) -> Option<Self> {
        let waiter = Self(waiting.clone());
        (waiting.inc() < MAX_WAITING).then_some(waiter)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.0.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_queue_is_bounded() {
        let waiting = Gauge::default();
        let mut waiters: Vec<_> = std::iter::from_fn(|| Waiter::enter(&waiting)).collect();
        assert_eq!((waiters.len() as i64, waiting.get()), (MAX_WAITING, MAX_WAITING));
        waiters.pop();
        assert_eq!(waiting.get(), MAX_WAITING - 1);
        assert!(Waiter::enter(&waiting).is_some());
        drop(waiters);
        assert_eq!(waiting.get(), 0);
    }
}
