//! Adaptive concurrency limits of this pod, shared by its workers.
//!
//! A limit measures the time from forwarding a request to the head of its response. The time of the body
//! depends on how fast the client reads, or on the purpose of a stream, and not on the application's load. A
//! request is in flight until its body ends, because the application works on it until then; an upgraded
//! connection only until the upgrade.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::gauge::Gauge;
use sluice_limiter::adaptive::{Adaptive, SampleOutcome};
use tokio::time::Instant;

/// The metrics of an adaptive limit.
#[derive(Debug, Clone)]
pub(crate) struct AdaptiveMetrics {
    /// The current limit.
    pub(crate) limit: Gauge,
    /// Requests in flight under the limit.
    pub(crate) in_flight: Gauge,
    /// 1 while the limit is lowered to measure the latency without queueing.
    pub(crate) probing: Gauge,
}

/// An adaptive limit. All snapshots with the limit share it.
#[derive(Debug)]
pub(crate) struct AdaptiveLimit {
    /// The limit before its first sample, to detect an edit of its settings.
    settings: Adaptive,
    /// A copy of the limit in `learnt`, which requests read without a lock.
    limit: AtomicU32,
    in_flight: Arc<AtomicU32>,
    learnt: Mutex<Adaptive>,
    /// Origin of the times that `learnt` receives.
    began: Instant,
    metrics: AdaptiveMetrics,
}

impl AdaptiveLimit {
    /// Creates a limit, or keeps `before`, that of the snapshot before, if its settings are the same.
    pub(crate) fn new(
        settings: &Adaptive,
        metrics: AdaptiveMetrics,
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        if let Some(before) = before.filter(|before| before.settings == *settings) {
            return before.clone();
        }
        let limit = settings.limit();
        metrics.limit.set(i64::from(limit));
        metrics.probing.set(0);
        Arc::new(Self {
            settings: settings.clone(),
            limit: AtomicU32::new(limit),
            // Requests in flight stay in flight across an edit.
            in_flight: before.map(|before| before.in_flight.clone()).unwrap_or_default(),
            learnt: Mutex::new(settings.clone()),
            began: Instant::now(),
            metrics,
        })
    }

    /// Adds a request, if the limit has room for it.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<AdaptivePermit> {
        let limit = self.limit.load(Ordering::Relaxed);
        let more = |n: u32| (n < limit).then_some(n + 1);
        let before = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok()?;
        Some(self.permit(before + 1))
    }

    /// Adds a request in any case, and reports whether the limit had room for it.
    pub(crate) fn acquire_anyway(self: &Arc<Self>) -> (AdaptivePermit, bool) {
        let before = self.in_flight.fetch_add(1, Ordering::AcqRel);
        (self.permit(before + 1), before < self.limit.load(Ordering::Relaxed))
    }

    fn permit(self: &Arc<Self>, in_flight: u32) -> AdaptivePermit {
        self.metrics.in_flight.inc();
        AdaptivePermit { limit: self.clone(), in_flight, sent: None }
    }

    fn sample(&self, sent: Instant, in_flight: u32, outcome: SampleOutcome) {
        let now = Instant::now();
        let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let mut learnt = self.learnt.lock().unwrap_or_else(PoisonError::into_inner);
        learnt.sample(micros(now - self.began), micros(now - sent), in_flight, outcome);
        let limit = learnt.limit();
        if self.limit.swap(limit, Ordering::Relaxed) != limit {
            self.metrics.limit.set(i64::from(limit));
            self.metrics.probing.set(i64::from(learnt.probing()));
        }
    }
}

/// A request in flight under an adaptive limit. Dropping it ends the request.
#[derive(Debug)]
pub(crate) struct AdaptivePermit {
    limit: Arc<AdaptiveLimit>,
    /// Number of requests in flight when this one started, itself included.
    in_flight: u32,
    /// Time at which the request was forwarded, until its response has come.
    sent: Option<Instant>,
}

impl AdaptivePermit {
    /// Notes that the request is being forwarded.
    pub(crate) fn forwarding(&mut self, now: Instant) {
        self.sent = Some(now);
    }

    /// Adds the sample of the forwarded request.
    pub(crate) fn forwarded(&mut self, outcome: SampleOutcome) {
        if let Some(sent) = self.sent.take() {
            self.limit.sample(sent, self.in_flight, outcome);
        }
    }

    /// Ends the request, and returns its limit.
    pub(crate) fn into_limit(self) -> Arc<AdaptiveLimit> {
        self.limit.clone()
    }
}

impl Drop for AdaptivePermit {
    fn drop(&mut self) {
        self.limit.in_flight.fetch_sub(1, Ordering::AcqRel);
        self.limit.metrics.in_flight.dec();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluice_limiter::adaptive::{AdaptiveAlgorithm, Bounds, Gradient2};
    use std::time::Duration;

    fn limit(initial: u32, before: Option<&Arc<AdaptiveLimit>>) -> Arc<AdaptiveLimit> {
        let bounds = Bounds { minimum: 1, maximum: 100, initial };
        let settings = Adaptive::new(AdaptiveAlgorithm::Gradient2(Gradient2::default()), bounds).unwrap();
        let gauge = Gauge::default;
        let metrics = before.map(|before| before.metrics.clone());
        let new = || AdaptiveMetrics { limit: gauge(), in_flight: gauge(), probing: gauge() };
        AdaptiveLimit::new(&settings, metrics.unwrap_or_else(new), before)
    }

    #[test]
    fn a_limit_bounds_the_requests_in_flight() {
        let limit = limit(3, None);
        let mut permits: Vec<_> = std::iter::from_fn(|| limit.try_acquire()).collect();
        assert_eq!((permits.len(), limit.metrics.in_flight.get()), (3, 3));
        let (shadow, room) = limit.acquire_anyway();
        assert!(!room && limit.try_acquire().is_none());
        drop(shadow);
        permits.pop();
        assert!(limit.acquire_anyway().1);
        assert!(limit.try_acquire().is_some());
        drop(permits);
        assert_eq!((limit.in_flight.load(Ordering::Relaxed), limit.metrics.in_flight.get()), (0, 0));
    }

    #[test]
    fn a_new_snapshot_keeps_the_learnt_limit_and_an_edit_keeps_the_requests_in_flight() {
        let before = limit(3, None);
        let held = before.try_acquire();
        assert!(Arc::ptr_eq(&before, &limit(3, Some(&before))));
        let edited = limit(2, Some(&before));
        assert!(edited.try_acquire().is_some_and(|permit| permit.in_flight == 2));
        drop(held);
        assert_eq!(edited.in_flight.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn fast_responses_raise_the_limit_and_ignored_ones_do_not() {
        let limit = limit(10, None);
        for outcome in [SampleOutcome::Success, SampleOutcome::Ignored] {
            let before = limit.limit.load(Ordering::Relaxed);
            for _ in 0..100 {
                let mut permits: Vec<_> = std::iter::from_fn(|| limit.try_acquire()).collect();
                permits.iter_mut().for_each(|permit| permit.forwarding(Instant::now()));
                tokio::time::advance(Duration::from_millis(10)).await;
                permits.iter_mut().for_each(|permit| permit.forwarded(outcome));
            }
            let after = limit.limit.load(Ordering::Relaxed);
            assert_eq!(after > before, outcome == SampleOutcome::Success, "{outcome:?}: {before} to {after}");
            assert_eq!(limit.metrics.limit.get(), i64::from(after));
        }
    }
}
