//! Counts and durations of the whole store: atomics that the tasks write and any thread reads.

use std::future::Future;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use futures::FutureExt as _;
use tokio::time::Instant;

use crate::failure::{StoreError, StoreHealth};

/// Upper bounds of the latency histogram in microseconds. One more bucket holds everything above the last
/// bound.
pub const LATENCY_BOUNDS_US: [u64; 10] =
    [100, 250, 500, 1_000, 2_500, 5_000, 10_000, 25_000, 50_000, 100_000];

/// A snapshot of the store's metrics since its start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RedisMetrics {
    /// Number of script calls with operations.
    pub calls: u64,
    /// Number of operations sent.
    pub checks: u64,
    /// Number of operations sent as a repetition of an equal check in the same call.
    pub merged: u64,
    /// Number of calls without a reply within the latency budget.
    pub timeouts: u64,
    /// Number of calls that the server ran after their deadline, and which therefore had no effect.
    pub late: u64,
    /// Number of operations dropped before they were sent, because their callers had given up or were about
    /// to.
    pub expired: u64,
    /// Number of calls that failed with an error.
    pub errors: u64,
    /// Number of connections after the first one to each server.
    pub reconnects: u64,
    /// Number of calls that a server of a cluster redirected to another one, or that had to be repeated.
    pub redirected: u64,
    /// Number of failed operations by error, in the order of [`StoreError::ALL`]. Operations that fail
    /// because of an open circuit are included.
    pub faults: [u64; StoreError::ALL.len()],
    /// Whether the circuit is open; in a cluster, that of any master.
    pub circuit_open: bool,
    /// Number of completed calls by duration, with the bounds [`LATENCY_BOUNDS_US`]. Not cumulative.
    pub latency_buckets: [u64; LATENCY_BOUNDS_US.len() + 1],
    /// Total duration of the completed calls, in microseconds.
    pub latency_sum_us: u64,
}

/// The live metrics of a store.
#[derive(Debug, Default)]
pub(crate) struct MetricsRecorder {
    pub(super) calls: AtomicU64,
    pub(super) checks: AtomicU64,
    pub(super) merged: AtomicU64,
    pub(super) timeouts: AtomicU64,
    pub(super) late: AtomicU64,
    pub(super) expired: AtomicU64,
    pub(super) errors: AtomicU64,
    pub(super) reconnects: AtomicU64,
    pub(super) redirected: AtomicU64,
    faults: [AtomicU64; StoreError::ALL.len()],
    latency_buckets: [AtomicU64; LATENCY_BOUNDS_US.len() + 1],
    latency_sum_us: AtomicU64,
}

/// Adds to a metric.
pub(super) fn add(metric: &AtomicU64, n: usize) {
    metric.fetch_add(n as u64, Relaxed);
}

/// Counts a timeout when it is dropped near its deadline before the operation completes.
struct TimeoutGuard<'a> {
    recorder: &'a MetricsRecorder,
    /// A drop after this instant counts as a timeout.
    near_deadline: Instant,
    completed: bool,
}

impl TimeoutGuard<'_> {
    fn complete(&mut self) {
        self.completed = true;
    }
}

impl Drop for TimeoutGuard<'_> {
    fn drop(&mut self) {
        if !self.completed && Instant::now() >= self.near_deadline {
            self.recorder.record_error(&StoreError::Timeout);
        }
    }
}

impl MetricsRecorder {
    /// Awaits an operation and counts its error. The caller may have a deadline of its own, shortly before or
    /// at this one, and drop the future; that counts as a timeout too.
    pub(crate) fn record<T>(
        &self,
        deadline: Instant,
        budget: Duration,
        operation: impl Future<Output = Result<T, StoreError>>,
    ) -> impl Future<Output = Result<T, StoreError>> {
        let near_deadline = deadline.checked_sub(budget / 10).unwrap_or(deadline);
        // An async function would take the memory of the operation twice.
        let mut guard = TimeoutGuard { recorder: self, near_deadline, completed: false };
        operation.map(move |result| {
            guard.complete();
            result.inspect_err(|error| self.record_error(error))
        })
    }

    fn record_error(&self, error: &StoreError) {
        let index = StoreError::ALL.iter().position(|known| known == error);
        if let Some(count) = index.and_then(|at| self.faults.get(at)) {
            add(count, 1);
        }
    }

    pub(super) fn record_latency(&self, latency: Duration) {
        let micros = latency.as_micros() as u64;
        let bucket = LATENCY_BOUNDS_US.partition_point(|&bound| bound < micros);
        self.latency_buckets[bucket].fetch_add(1, Relaxed);
        self.latency_sum_us.fetch_add(micros, Relaxed);
    }

    /// Returns a snapshot of the metrics.
    pub(crate) fn snapshot(&self, health: StoreHealth) -> RedisMetrics {
        RedisMetrics {
            calls: self.calls.load(Relaxed),
            checks: self.checks.load(Relaxed),
            merged: self.merged.load(Relaxed),
            timeouts: self.timeouts.load(Relaxed),
            late: self.late.load(Relaxed),
            expired: self.expired.load(Relaxed),
            errors: self.errors.load(Relaxed),
            reconnects: self.reconnects.load(Relaxed),
            redirected: self.redirected.load(Relaxed),
            faults: std::array::from_fn(|n| self.faults[n].load(Relaxed)),
            circuit_open: matches!(health, StoreHealth::Failing(_)),
            latency_buckets: std::array::from_fn(|n| self.latency_buckets[n].load(Relaxed)),
            latency_sum_us: self.latency_sum_us.load(Relaxed),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_falls_into_the_bucket_of_its_bound() {
        let recorder = MetricsRecorder::default();
        for micros in [0, 100, 101, 100_000, 100_001, 9_000_000] {
            recorder.record_latency(Duration::from_micros(micros));
        }
        let buckets = recorder.snapshot(StoreHealth::Healthy).latency_buckets;
        assert_eq!(buckets, [2, 1, 0, 0, 0, 0, 0, 0, 0, 1, 2]);
    }

    #[tokio::test]
    async fn each_error_has_a_count_of_its_own_and_a_success_has_none() {
        let recorder = MetricsRecorder::default();
        let (deadline, budget) = (Instant::now() + Duration::from_secs(10), Duration::from_secs(10));
        for (n, error) in StoreError::ALL.iter().enumerate() {
            for _ in 0..=n {
                let result = recorder.record::<()>(deadline, budget, async { Err(error.clone()) }).await;
                assert_eq!(result, Err(error.clone()));
            }
        }
        assert_eq!(recorder.record(deadline, budget, async { Ok(7) }).await, Ok(7));
        assert_eq!(recorder.snapshot(StoreHealth::Healthy).faults, [1, 2, 3, 4, 5, 6, 7, 8]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_caller_that_gives_up_near_the_deadline_counts_as_a_timeout_and_an_earlier_one_does_not() {
        let recorder = MetricsRecorder::default();
        let timeout = StoreError::ALL.iter().position(|error| *error == StoreError::Timeout).unwrap();
        for (millis, timeouts) in [(500, 0), (950, 1), (1000, 2)] {
            let budget = Duration::from_secs(1);
            let never = recorder.record::<()>(Instant::now() + budget, budget, std::future::pending());
            assert!(tokio::time::timeout(Duration::from_millis(millis), never).await.is_err());
            let faults = recorder.snapshot(StoreHealth::Healthy).faults;
            assert_eq!(faults[timeout], timeouts, "after {millis} ms");
        }
    }
}
