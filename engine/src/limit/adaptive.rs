//! Adaptive concurrency limits of this pod, shared by its workers.
//!
//! A limit measures the time from forwarding a request to the head of its response. The time of the body
//! depends on how fast the client reads, or on the purpose of a stream, and not on the application's load. A
//! request is in flight until its body ends, because the application works on it until then; an upgraded
//! connection only until the upgrade.
//!
//! A priority has a part of the limit in reserve. Its requests use the reserve first, and then what is not reserved, as all
//! others do. So the reserves and the rest are counted separately, each in an atomic, and their sum never exceeds the limit.

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::metrics::counter::Counter;
use sluice_config::prepared::PreparedAdaptive;
use sluice_limiter::adaptive::{Adaptive, SampleOutcome};
use tokio::time::Instant;

use crate::metrics::limit::AdaptiveMetrics;

/// Where a request under an adaptive limit comes from.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Origin {
    /// Index of its priority, from 1, or 0 for none.
    pub(crate) priority: u16,
    /// Hash of the client's address.
    pub(crate) client: u64,
}

/// An adaptive limit. All snapshots with the limit share it.
#[derive(Debug)]
pub(crate) struct AdaptiveLimit {
    /// The limit before its first sample and its priorities, to detect an edit.
    settings: PreparedAdaptive,
    /// A copy of the limit in `learnt`, which requests read without a lock.
    limit: AtomicU32,
    /// Requests in flight that use no reserve.
    unreserved: Arc<AtomicU32>,
    /// Requests in flight that use the reserve of each priority.
    reserved: Vec<Arc<AtomicU32>>,
    learnt: Mutex<Adaptive>,
    /// Origin of the times that `learnt` receives.
    began: Instant,
    metrics: AdaptiveMetrics,
}

impl AdaptiveLimit {
    /// Creates a limit, or keeps `before`, that of the snapshot before, if its settings are the same.
    pub(crate) fn new(
        settings: &PreparedAdaptive,
        metrics: AdaptiveMetrics,
        before: Option<&Arc<Self>>,
    ) -> Arc<Self> {
        if let Some(before) = before.filter(|before| before.settings == *settings) {
            return before.clone();
        }
        let limit = settings.initial.limit();
        let reserved =
            |n: usize| before.and_then(|before| before.reserved.get(n).cloned()).unwrap_or_default();
        metrics.limit.set(i64::from(limit));
        metrics.probing.set(0);
        Arc::new(Self {
            settings: settings.clone(),
            limit: AtomicU32::new(limit),
            // Requests in flight stay in flight across an edit.
            unreserved: before.map(|before| before.unreserved.clone()).unwrap_or_default(),
            reserved: (0..settings.priorities.len()).map(reserved).collect(),
            learnt: Mutex::new(settings.initial.clone()),
            began: Instant::now(),
            metrics,
        })
    }

    /// Adds a request, if the limit has room for it.
    pub(crate) fn try_acquire(self: &Arc<Self>, from: Origin) -> Option<AdaptivePermit> {
        let permit = self.acquire(from);
        if let Some([admitted, shed]) = self.metrics_of(from.priority) {
            if permit.is_some() {
                admitted.inc()
            } else {
                shed.inc()
            };
        }
        permit
    }

    /// Adds a request in any case, and reports whether the limit had room for it.
    pub(crate) fn acquire_anyway(self: &Arc<Self>, from: Origin) -> (AdaptivePermit, bool) {
        match self.try_acquire(from) {
            Some(permit) => (permit, true),
            None => (self.acquire_without_room(from), false),
        }
    }

    /// Adds a request again that was admitted before.
    pub(crate) fn acquire_again(self: &Arc<Self>, from: Origin) -> AdaptivePermit {
        self.acquire(from).unwrap_or_else(|| self.acquire_without_room(from))
    }

    fn acquire_without_room(self: &Arc<Self>, from: Origin) -> AdaptivePermit {
        self.unreserved.fetch_add(1, Ordering::AcqRel);
        self.permit(self.unreserved.clone(), from)
    }

    fn acquire(self: &Arc<Self>, from: Origin) -> Option<AdaptivePermit> {
        let (mut rest, own) = (self.limit.load(Ordering::Relaxed), usize::from(from.priority));
        for (n, (reserved, (_, percent))) in (1..).zip(self.reserved.iter().zip(&self.settings.priorities)) {
            let reserve = reserve(rest, self.limit.load(Ordering::Relaxed), *percent);
            rest -= reserve;
            if n == own && take(reserved, reserve) {
                return Some(self.permit(reserved.clone(), from));
            }
        }
        take(&self.unreserved, rest).then(|| self.permit(self.unreserved.clone(), from))
    }

    fn metrics_of(&self, priority: u16) -> Option<&[Counter; 2]> {
        self.metrics.priorities.get(usize::from(priority).checked_sub(1)?)
    }

    /// Returns the permit of a request that is counted in `place`.
    fn permit(self: &Arc<Self>, place: Arc<AtomicU32>, from: Origin) -> AdaptivePermit {
        self.metrics.in_flight.inc();
        let in_flight =
            self.reserved.iter().chain([&self.unreserved]).map(|n| n.load(Ordering::Relaxed)).sum();
        AdaptivePermit { limit: self.clone(), place, from, in_flight, sent: None }
    }

    fn sample(&self, sent: Instant, in_flight: u32, outcome: SampleOutcome, client: u64) {
        let now = Instant::now();
        let micros = |time: std::time::Duration| u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        let mut learnt = self.learnt.lock().unwrap_or_else(PoisonError::into_inner);
        learnt.sample(micros(now - self.began), micros(now - sent), in_flight, outcome, client);
        let limit = learnt.limit();
        if self.limit.swap(limit, Ordering::Relaxed) != limit {
            self.metrics.limit.set(i64::from(limit));
            self.metrics.probing.set(i64::from(learnt.probing()));
        }
    }
}

/// Returns how much of the limit is reserved, of the rest that those before have left. Something is always left for others.
fn reserve(rest: u32, limit: u32, percent: u32) -> u32 {
    let reserve = (u64::from(limit) * u64::from(percent)).div_ceil(100);
    u32::try_from(reserve).unwrap_or(u32::MAX).min(rest.saturating_sub(1))
}

/// Adds a request if there are fewer than `most`.
fn take(place: &AtomicU32, most: u32) -> bool {
    place.fetch_update(Ordering::AcqRel, Ordering::Relaxed, |n| (n < most).then_some(n + 1)).is_ok()
}

/// A request in flight under an adaptive limit. Dropping it ends the request.
#[derive(Debug)]
pub(crate) struct AdaptivePermit {
    limit: Arc<AdaptiveLimit>,
    /// Where the request is counted.
    place: Arc<AtomicU32>,
    from: Origin,
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
            self.limit.sample(sent, self.in_flight, outcome, self.from.client);
        }
    }

    /// Ends the request, and returns its limit and its origin.
    pub(crate) fn into_limit(self) -> (Arc<AdaptiveLimit>, Origin) {
        (self.limit.clone(), self.from)
    }
}

impl Drop for AdaptivePermit {
    fn drop(&mut self) {
        self.place.fetch_sub(1, Ordering::AcqRel);
        self.limit.metrics.in_flight.dec();
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::metrics::gauge::Gauge;

    use super::*;
    use sluice_limiter::adaptive::{AdaptiveAlgorithm, Bounds, Gradient2};
    use std::time::Duration;

    fn from(priority: u16) -> Origin {
        Origin { priority, client: 0 }
    }

    fn limit(initial: u32, before: Option<&Arc<AdaptiveLimit>>) -> Arc<AdaptiveLimit> {
        with_reserves(initial, &[], before)
    }

    fn with_reserves(
        initial: u32,
        reserves: &[u32],
        before: Option<&Arc<AdaptiveLimit>>,
    ) -> Arc<AdaptiveLimit> {
        let bounds = Bounds { minimum: 1, maximum: 100, initial };
        let initial = Adaptive::new(AdaptiveAlgorithm::Gradient2(Gradient2::default()), bounds).unwrap();
        let priorities: Vec<_> = reserves.iter().map(|percent| (String::new(), *percent)).collect();
        let gauge = Gauge::default;
        let metrics = before.map(|before| before.metrics.clone());
        let new = || AdaptiveMetrics {
            limit: gauge(),
            in_flight: gauge(),
            probing: gauge(),
            priorities: reserves.iter().map(|_| Default::default()).collect(),
        };
        let settings = PreparedAdaptive { initial, priorities };
        AdaptiveLimit::new(&settings, metrics.unwrap_or_else(new), before)
    }

    #[test]
    fn a_limit_bounds_the_requests_in_flight() {
        let limit = limit(3, None);
        let mut permits: Vec<_> = std::iter::from_fn(|| limit.try_acquire(from(0))).collect();
        assert_eq!((permits.len(), limit.metrics.in_flight.get()), (3, 3));
        let (shadow, room) = limit.acquire_anyway(from(0));
        assert!(!room && limit.try_acquire(from(0)).is_none());
        drop(shadow);
        permits.pop();
        assert!(limit.acquire_anyway(from(0)).1);
        assert!(limit.try_acquire(from(0)).is_some());
        drop(permits);
        assert_eq!((limit.unreserved.load(Ordering::Relaxed), limit.metrics.in_flight.get()), (0, 0));
    }

    /// Acquires permits until there is no room.
    fn fill(limit: &Arc<AdaptiveLimit>, priority: u16) -> Vec<AdaptivePermit> {
        std::iter::from_fn(|| limit.try_acquire(from(priority))).collect()
    }

    #[test]
    fn nobody_uses_the_reserve_of_a_priority_and_all_share_the_rest() {
        let limit = with_reserves(10, &[20, 30], None);
        let others = fill(&limit, 0);
        assert_eq!(others.len(), 5);
        let first = fill(&limit, 1);
        let second = fill(&limit, 2);
        assert_eq!((first.len(), second.len(), limit.metrics.in_flight.get()), (2, 3, 10));
        drop(others);
        // The rest goes to whoever comes first, and a permit gives back what it has used.
        let more = fill(&limit, 2);
        assert_eq!((more.len(), fill(&limit, 0).len()), (5, 0));
        drop((first, second));
        assert_eq!((fill(&limit, 0).len(), fill(&limit, 1).len(), fill(&limit, 2).len()), (0, 2, 3));
        let counted: Vec<_> =
            limit.metrics.priorities.iter().map(|[one, other]| (one.get(), other.get())).collect();
        assert_eq!(counted, [(4, 2), (11, 3)]);
    }

    #[test]
    fn a_small_limit_has_a_reserve_and_room_for_others() {
        let rooms = |initial: u32, reserves: &[u32]| {
            let limit = with_reserves(initial, reserves, None);
            let others = fill(&limit, 0);
            let first = fill(&limit, 1);
            (others.len(), first.len())
        };
        assert_eq!(rooms(1, &[90]), (1, 0));
        assert_eq!(rooms(2, &[1]), (1, 1));
        assert_eq!(rooms(3, &[45, 45]), (1, 2));
        assert_eq!(rooms(100, &[90]), (10, 90));
    }

    #[test]
    fn a_new_snapshot_keeps_the_learnt_limit_and_an_edit_keeps_the_requests_in_flight() {
        let before = limit(3, None);
        let held = before.try_acquire(from(0));
        assert!(Arc::ptr_eq(&before, &limit(3, Some(&before))));
        let edited = limit(2, Some(&before));
        assert!(edited.try_acquire(from(0)).is_some_and(|permit| permit.in_flight == 2));
        drop(held);
        assert_eq!(edited.unreserved.load(Ordering::Relaxed), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn fast_responses_raise_the_limit_and_ignored_ones_do_not() {
        let limit = limit(10, None);
        for outcome in [SampleOutcome::Success, SampleOutcome::Ignored] {
            let before = limit.limit.load(Ordering::Relaxed);
            for _ in 0..100 {
                let mut permits: Vec<_> = std::iter::from_fn(|| limit.try_acquire(from(0))).collect();
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
