//! How busy the application is: requests that were forwarded to it and not yet answered to the end. From inside a pod
//! this is the one measure of its utilization that is true: a container sees its own cgroup and no other's, and the
//! node's load says little about a pod with a quota.
//!
//! A worker counts on a cache line of its own, by the references to it; [`InFlight::watch`] adds them up, ten times a
//! second, and once a second says what the mean was.

use std::fmt::Error;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::metrics::MetricType;

use crate::config::publisher::Publisher;

/// How often it is looked at, and how many looks are a second.
const LOOK: Duration = Duration::from_millis(100);
const LOOKS: u64 = 10;
/// As long as nothing has been measured.
const UNKNOWN: u64 = u64::MAX;

/// Counts the requests in flight of one worker; a clone is one of them.
#[derive(Debug, Clone)]
pub(crate) struct Busy {
    _line: Arc<Line>,
}

/// Two workers never write to the same cache line.
#[derive(Debug, Default)]
#[repr(align(128))]
struct Line;

/// The mean of the last second.
#[derive(Debug, Clone)]
pub(crate) struct Load(Arc<AtomicU64>);

impl Load {
    /// Whether it is below so many hundredths of a request. Never, as long as nothing has been measured.
    pub(crate) fn is_below(&self, hundredths: u64) -> bool {
        self.0.load(Ordering::Relaxed) < hundredths
    }
}

/// The requests in flight of all workers.
#[derive(Debug, Clone)]
pub(crate) struct InFlight {
    workers: Arc<Mutex<Vec<Weak<Line>>>>,
    pub(crate) load: Load,
}

impl InFlight {
    pub(crate) fn new() -> Self {
        Self { workers: Arc::default(), load: Load(Arc::new(AtomicU64::new(UNKNOWN))) }
    }

    /// One more worker's counter.
    pub(crate) fn worker(&self) -> Busy {
        let line = Arc::new(Line);
        self.workers.lock().unwrap_or_else(PoisonError::into_inner).push(Arc::downgrade(&line));
        Busy { _line: line }
    }

    fn count(&self) -> u64 {
        let workers = self.workers.lock().unwrap_or_else(PoisonError::into_inner);
        // One reference is the worker's own.
        workers.iter().map(|worker| worker.strong_count().saturating_sub(1) as u64).sum()
    }

    /// Measures for as long as anything in force depends on it.
    pub(crate) async fn watch(self, publisher: Publisher) {
        loop {
            let snapshot = publisher.current();
            if !snapshot.is_elastic() {
                self.load.0.store(UNKNOWN, Ordering::Relaxed);
                tokio::time::sleep(LOOK * LOOKS as u32).await;
                continue;
            }
            let mut sum = 0;
            for _ in 0..LOOKS {
                tokio::time::sleep(LOOK).await;
                sum += self.count();
            }
            self.load.0.store(sum * 100 / LOOKS, Ordering::Relaxed);
            publisher.current().report_boosted();
        }
    }
}

impl Collector for InFlight {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let help = "Requests at the application, not yet answered to the end";
        encoder
            .encode_descriptor("requests_in_flight", help, None, MetricType::Gauge)?
            .encode_gauge(&(self.count() as i64))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_in_flight_is_counted_over_all_workers() {
        let in_flight = InFlight::new();
        let (one, two) = (in_flight.worker(), in_flight.worker());
        assert_eq!(in_flight.count(), 0);
        let requests = [one.clone(), one.clone(), two.clone()];
        assert_eq!(in_flight.count(), 3);
        drop(requests);
        drop((one, two));
        assert_eq!(in_flight.count(), 0);
    }

    #[test]
    fn nothing_is_spare_before_it_was_measured() {
        let load = InFlight::new().load;
        assert!(!load.is_below(u64::MAX));
        load.0.store(250, Ordering::Relaxed);
        assert!(load.is_below(251) && !load.is_below(250));
    }
}
