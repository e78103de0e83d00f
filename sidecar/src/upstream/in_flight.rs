//! Requests in flight: forwarded to the application, and the response has not ended. From inside a pod this
//! is the only reliable measure of the application's utilization: a container sees its own cgroup and no
//! other, and the node's load means little for a pod with a quota.
//!
//! Each worker has an `Arc` on a cache line of its own, whose reference count is the worker's number of
//! requests in flight. [`InFlight::watch`] adds these numbers up ten times a second and publishes the mean
//! once a second.

use std::fmt::Error;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;
use sluice_engine::Load;

const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);
const SAMPLES_PER_SECOND: u64 = 10;

/// A request in flight. Each worker keeps one more, which it clones for every request.
#[derive(Debug, Clone)]
pub(crate) struct InFlightGuard {
    _line: Arc<CacheLine>,
}

/// The allocation whose references are counted. Two workers never write to the same cache
/// line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct CacheLine;

/// The requests in flight of all workers. Clones share the counters.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    workers: Arc<Mutex<Vec<Weak<CacheLine>>>>,
    pub(crate) load: Load,
}

impl InFlight {
    /// Creates counters without workers.
    pub(crate) fn new() -> Self {
        Self { workers: Arc::default(), load: Load::default() }
    }

    /// Adds the counter of one more worker.
    pub(crate) fn add_worker(&self) -> InFlightGuard {
        let line = Arc::new(CacheLine);
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&line));
        InFlightGuard { _line: line }
    }

    fn count(&self) -> u64 {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        // One reference is the worker's own.
        workers.iter().map(|worker| worker.strong_count().saturating_sub(1) as u64).sum()
    }

    /// Measures the load once a second while `is_needed`, and calls `measured` after each measurement. Never
    /// returns.
    pub(crate) async fn watch(self, is_needed: impl Fn() -> bool, measured: impl Fn()) {
        loop {
            if !is_needed() {
                self.load.set(None);
                tokio::time::sleep(SAMPLE_INTERVAL * SAMPLES_PER_SECOND as u32).await;
                continue;
            }
            let mut sum = 0;
            for _ in 0..SAMPLES_PER_SECOND {
                tokio::time::sleep(SAMPLE_INTERVAL).await;
                sum += self.count();
            }
            self.load.set(Some(sum * 100 / SAMPLES_PER_SECOND));
            measured();
        }
    }
}

impl Collector for InFlight {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Requests forwarded to the application whose response has not ended";
        encoder
            .encode_descriptor("requests_in_flight", help, None, MetricType::Gauge)?
            .encode_gauge(&(self.count() as i64))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::Ordering::Relaxed;

    use super::*;

    #[test]
    fn requests_in_flight_are_counted_over_all_workers() {
        let in_flight = InFlight::new();
        let (one, two) = (in_flight.add_worker(), in_flight.add_worker());
        assert_eq!(in_flight.count(), 0);
        let requests = [one.clone(), one.clone(), two.clone()];
        assert_eq!(in_flight.count(), 3);
        drop(requests);
        drop((one, two));
        assert_eq!(in_flight.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn the_load_is_the_mean_of_a_second_and_unknown_while_not_needed() {
        let in_flight = InFlight::new();
        let worker = in_flight.add_worker();
        let _request = worker.clone();
        let needed = Arc::new(std::sync::atomic::AtomicBool::new(true));
        let (is_needed, (notify, mut measured)) = (needed.clone(), tokio::sync::mpsc::unbounded_channel());
        let watch =
            in_flight.clone().watch(move || is_needed.load(Relaxed), move || notify.send(()).unwrap());
        let watch = tokio::spawn(watch);
        measured.recv().await.unwrap();
        assert!(in_flight.load.is_below(101) && !in_flight.load.is_below(100));
        needed.store(false, Relaxed);
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(!in_flight.load.is_below(u64::MAX));
        watch.abort();
    }
}
