//! Adaptive limits of requests at a time: of this pod, shared by its workers.
//!
//! What is measured is the time from forwarding a request to the head of the response. The body's time depends on how fast
//! the client reads, and of a stream on what it is for; both say nothing of the application's load. In flight is a
//! request until its body has ended, for so long the application has work with it; an upgraded connection only until it is
//! one.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use http::StatusCode;
use prometheus_client::metrics::gauge::Gauge;
use sluice_limiter::adaptive::{Adaptive, SampleOutcome};
use tokio::time::Instant;

use crate::upstream::forward::Failed;

/// What the metrics of an adaptive limit say.
#[derive(Debug, Clone)]
pub(crate) struct AdaptiveMetrics {
    /// The limit of now.
    pub(crate) limit: Gauge,
    /// Requests in flight under it.
    pub(crate) in_flight: Gauge,
    /// 1 while it is lowered to measure the round trip without a queue.
    pub(crate) probing: Gauge,
}

/// An adaptive limit. The same in all snapshots that have it.
#[derive(Debug)]
pub(crate) struct AdaptiveLimit {
    /// As it was before anything was known: by this an edit is recognized.
    settings: Adaptive,
    /// A copy of what `learnt` says, for those who come.
    limit: AtomicU32,
    in_flight: Arc<AtomicU32>,
    learnt: Mutex<Adaptive>,
    began: Instant,
    metrics: AdaptiveMetrics,
}

impl AdaptiveLimit {
    /// A limit; `before` is the same in the snapshot before.
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
            // After an edit those who are in flight still are.
            in_flight: before.map(|before| before.in_flight.clone()).unwrap_or_default(),
            learnt: Mutex::new(settings.clone()),
            began: Instant::now(),
            metrics,
        })
    }

    /// One request more, if the limit has room for it.
    pub(crate) fn try_acquire(self: &Arc<Self>) -> Option<AdaptivePermit> {
        let limit = self.limit.load(Ordering::Relaxed);
        let more = |n: u32| (n < limit).then_some(n + 1);
        let before = self.in_flight.fetch_update(Ordering::AcqRel, Ordering::Relaxed, more).ok()?;
        Some(self.permit(before + 1))
    }

    /// One request more, whether there is room for it or not; and whether there was.
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

/// A request in flight. Dropped, it is no longer.
#[derive(Debug)]
pub(crate) struct AdaptivePermit {
    limit: Arc<AdaptiveLimit>,
    /// With itself, when it began.
    in_flight: u32,
    /// When it was forwarded, until its answer has come.
    sent: Option<Instant>,
}

impl AdaptivePermit {
    /// It is being forwarded.
    pub(crate) fn forwarding(&mut self, now: Instant) {
        self.sent = Some(now);
    }

    /// How that ended; `None`: an answer that says nothing.
    pub(crate) fn forwarded(&mut self, outcome: SampleOutcome) {
        if let Some(sent) = self.sent.take() {
            self.limit.sample(sent, self.in_flight, outcome);
        }
    }

    /// The same request, later: it does not count meanwhile.
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

/// What an answer says of the application's load. An error of its own says nothing: a quick one, taken for an answer, would
/// raise the limit of an application that cannot work at all.
pub(crate) fn of_status(status: StatusCode) -> SampleOutcome {
    if status.is_server_error() { SampleOutcome::Ignored } else { SampleOutcome::Success }
}

/// What it says that there is none.
pub(crate) fn of_failure(failed: &Failed) -> SampleOutcome {
    match failed {
        Failed::Unreachable(_) | Failed::NoAnswer(_) => SampleOutcome::Dropped,
        Failed::BrokenRequest => SampleOutcome::Ignored,
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
    fn so_many_are_in_flight_and_no_more() {
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
    fn a_new_snapshot_keeps_what_was_learnt_and_an_edit_who_is_in_flight() {
        let before = limit(3, None);
        let held = before.try_acquire();
        assert!(Arc::ptr_eq(&before, &limit(3, Some(&before))));
        let edited = limit(2, Some(&before));
        assert!(edited.try_acquire().is_some_and(|permit| permit.in_flight == 2));
        drop(held);
        assert_eq!(edited.in_flight.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn quick_answers_raise_the_limit_and_errors_of_the_application_say_nothing() {
        let limit = limit(10, None);
        for status in [StatusCode::OK, StatusCode::INTERNAL_SERVER_ERROR] {
            let before = limit.limit.load(Ordering::Relaxed);
            for _ in 0..100 {
                let mut permits: Vec<_> = std::iter::from_fn(|| limit.try_acquire()).collect();
                permits.iter_mut().for_each(|permit| permit.forwarding(Instant::now()));
                tokio::time::advance(Duration::from_millis(10)).await;
                permits.iter_mut().for_each(|permit| permit.forwarded(of_status(status)));
            }
            let after = limit.limit.load(Ordering::Relaxed);
            assert_eq!(after > before, status.is_success(), "{status}: {before} to {after}");
            assert_eq!(limit.metrics.limit.get(), i64::from(after));
        }
    }
}
