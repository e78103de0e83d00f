//! Requests that a leaky bucket admits wait for their admission time before they go to the application. A
//! client that goes away while it waits is refunded, so later requests wait less.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use sluice_limiter::Decision;
use sluice_store::Reservation;
use smallvec::SmallVec;
use tokio::time::Instant;

use crate::limit::correction::Correction;
use crate::limit::index::LimitIndex;
use crate::limit::snapshot::Snapshot;
use crate::limit::state::State;

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
    /// Places an admitted request in the delay queues of its limits; `None` if it need not wait.
    ///
    /// # Errors
    /// A queue is full. All counters of the request are refunded.
    pub(crate) fn of(snapshot: &Snapshot, states: &[State]) -> Result<Option<Self>, QueueFull> {
        let delay = |decisions: &[Decision]| {
            Duration::from_micros(decisions.iter().map(|decision| decision.delay).max().unwrap_or(0))
        };
        let longest = states.iter().map(|state| delay(&state.checked.outcome.response.decisions)).max();
        let wait = longest.unwrap_or_default();
        if wait.is_zero() {
            return Ok(None);
        }
        let counted = || states.iter().flat_map(|state| state.counted().map(move |one| (state, one)));
        let mut charges = SmallVec::<[Charge; 1]>::new();
        for (state, (n, limit, decisions)) in counted() {
            let Some(waiting) = &snapshot.limit(limit).metrics.waiting else { continue };
            if delay(decisions).is_zero() {
                continue;
            }
            let delayed = &snapshot.limit(limit).delayed;
            let Some(waiter) = Waiter::enter(delayed, waiting) else {
                charges.into_iter().for_each(Charge::keep);
                for (state, (n, limit, decisions)) in counted() {
                    // Slots are released by their own guards.
                    if snapshot.limit(limit).concurrency.is_none() {
                        drop(Charge::new(snapshot, state, n, delay(decisions), None));
                    }
                }
                return Err(QueueFull { limit, wait, at: state.checked.outcome.response.at });
            };
            charges.push(Charge::new(snapshot, state, n, delay(decisions), Some(waiter)));
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
    fn new(snapshot: &Snapshot, state: &State, n: usize, delay: Duration, waiter: Option<Waiter>) -> Self {
        // A leaky bucket identifies its charges by their admission time.
        let delay = delay.as_micros() as u64;
        let reservation = match state.checked.charged(n) {
            Reservation::Store(at) => Reservation::Store(at + delay),
            Reservation::Overflow(at) => Reservation::Overflow(at + delay),
            Reservation::Local(at) => Reservation::Local(at + delay),
            Reservation::Nothing => return Self { refund: None, waiter },
        };
        let limiter = snapshot.limiter(state.part.limits[n]).clone();
        let refund = Correction::refund(limiter, state.part.counters[n].clone(), reservation);
        Self { refund: Some(refund), waiter }
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
struct Waiter {
    delayed: Arc<AtomicI64>,
    waiting: Gauge,
}

impl Waiter {
    /// Enters the queue, unless it is full. `delayed` counts the requests in it; the metric also counts those that wait until the
    /// limit admits them.
    fn enter(delayed: &Arc<AtomicI64>, waiting: &Gauge) -> Option<Self> {
        waiting.inc();
        let waiter = Self { delayed: delayed.clone(), waiting: waiting.clone() };
        (delayed.fetch_add(1, Ordering::Relaxed) < MAX_WAITING).then_some(waiter)
    }
}

impl Drop for Waiter {
    fn drop(&mut self) {
        self.delayed.fetch_sub(1, Ordering::Relaxed);
        self.waiting.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_queue_is_bounded() {
        let (delayed, waiting) = (Arc::default(), Gauge::default());
        // Requests that wait until the limit admits them take no room.
        waiting.set(5);
        let enter = || Waiter::enter(&delayed, &waiting);
        let mut waiters: Vec<_> = std::iter::from_fn(enter).collect();
        waiting.dec_by(5);
        assert_eq!((waiters.len() as i64, waiting.get()), (MAX_WAITING, MAX_WAITING));
        waiters.pop();
        assert_eq!(waiting.get(), MAX_WAITING - 1);
        assert!(enter().is_some());
        drop(waiters);
        assert_eq!(waiting.get(), 0);
    }
}
