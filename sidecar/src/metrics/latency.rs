//! Times of requests, as histograms of atomics: no lock on the path of a request.

use std::fmt::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

/// Number of upper bounds.
const BOUNDS: usize = 11;

/// A histogram of times, with its name. Clones share the numbers.
#[derive(Debug, Clone)]
pub(crate) struct Latency {
    name: &'static str,
    help: &'static str,
    /// Upper bounds of the buckets in microseconds. One more bucket holds everything above the last bound.
    bounds_us: [u64; BOUNDS],
    numbers: Arc<Numbers>,
}

#[derive(Debug, Default)]
struct Numbers {
    buckets: [AtomicU64; BOUNDS + 1],
    sum_us: AtomicU64,
}

impl Latency {
    /// Times from the head of a request to the decision of its limits, without those that may wait in a queue.
    pub(super) fn added() -> Self {
        Self {
            name: "added_latency_seconds",
            help: "Time from the head of a request to the decision of its limits, in seconds, with the check in the store. \
                   Refused requests, requests whose client leaves meanwhile, and those of limits with a queue are left out",
            bounds_us: [25, 50, 100, 250, 500, 1_000, 2_500, 5_000, 10_000, 50_000, 250_000],
            numbers: Arc::default(),
        }
    }

    /// Added times of requests that may wait in a queue.
    pub(super) fn queued() -> Self {
        Self {
            name: "queued_latency_seconds",
            help: "Time from the head of a request that meets a limit with a queue to its decision, in seconds, with its wait. \
                   Requests whose client leaves meanwhile are left out",
            bounds_us: [
                500, 1_000, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000, 5_000_000, 10_000_000,
                30_000_000,
            ],
            numbers: Arc::default(),
        }
    }

    /// Records the time of a request.
    pub(crate) fn record(&self, time: Duration) {
        let micros = u64::try_from(time.as_micros()).unwrap_or(u64::MAX);
        // Most requests are in one of the first buckets.
        let bucket = self.bounds_us.iter().position(|&bound| micros <= bound).unwrap_or(BOUNDS);
        self.numbers.buckets[bucket].fetch_add(1, Relaxed);
        self.numbers.sum_us.fetch_add(micros, Relaxed);
    }
}

impl Collector for Latency {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let mut histogram = encoder.encode_descriptor(self.name, self.help, None, MetricType::Histogram)?;
        let bounds = self.bounds_us.iter().map(|&us| us as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> =
            bounds.zip(&self.numbers.buckets).map(|(bound, count)| (bound, count.load(Relaxed))).collect();
        let count = buckets.iter().map(|(_, count)| count).sum();
        let sum = self.numbers.sum_us.load(Relaxed) as f64 / 1e6;
        histogram.encode_histogram::<NoLabelSet>(sum, count, &buckets, None)
    }
}

#[cfg(test)]
mod tests {
    use prometheus_client::registry::Registry;

    use super::*;

    #[test]
    fn a_time_is_counted_in_the_first_bucket_that_holds_it() {
        let latency = Latency::added();
        for micros in [0, 25, 26, 250_000, 250_001] {
            latency.record(Duration::from_micros(micros));
        }
        let mut registry = Registry::with_prefix("sluice");
        registry.register_collector(Box::new(latency));
        let mut text = String::new();
        prometheus_client::encoding::text::encode(&mut text, &registry).unwrap();
        for line in [
            "sluice_added_latency_seconds_sum 0.500052",
            "sluice_added_latency_seconds_count 5",
            "sluice_added_latency_seconds_bucket{le=\"0.000025\"} 2",
            "sluice_added_latency_seconds_bucket{le=\"0.00005\"} 3",
            "sluice_added_latency_seconds_bucket{le=\"0.25\"} 4",
            "sluice_added_latency_seconds_bucket{le=\"+Inf\"} 5",
        ] {
            assert!(text.lines().any(|found| found == line), "{line}:\n{text}");
        }
    }
}
