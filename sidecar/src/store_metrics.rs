//! The store's own numbers, read when somebody asks for metrics. They begin anew with every new store, which
//! Prometheus takes for a restart.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use sluice_store::redis::LATENCY_BOUNDS_US;
use sluice_store::{Store, StoreHealth};

use crate::stores::CurrentStore;

/// Reads the store that is in use.
#[derive(Debug)]
pub(crate) struct StoreMetrics(pub(crate) CurrentStore);

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let store = self.0.load_full();
        let healthy = store.as_ref().is_some_and(|store| store.health() == StoreHealth::Healthy);
        encoder
            .encode_descriptor("store_healthy", "1: the last call succeeded", None, MetricType::Gauge)?
            .encode_gauge(&i64::from(healthy))?;
        let metrics = match store.as_deref() {
            Some(Store::Redis(redis)) => redis.metrics(),
            Some(Store::Memory(memory)) => {
                return encoder
                    .encode_descriptor("store_keys", "Keys in the memory store", None, MetricType::Gauge)?
                    .encode_gauge(&(memory.keys() as i64));
            }
            None => return Ok(()),
        };
        encoder
            .encode_descriptor("store_circuit_open", "1: no call is tried", None, MetricType::Gauge)?
            .encode_gauge(&i64::from(metrics.circuit_open))?;
        let counters = [
            ("store_calls", "Calls that carried checks", metrics.calls),
            ("store_checks", "Checks sent; by calls: the size of batches", metrics.checks),
            ("store_merged", "Checks sent as a repetition of an equal one", metrics.merged),
            ("store_timeouts", "Calls without an answer within the latency budget", metrics.timeouts),
            ("store_late", "Calls that the server took up after their deadline", metrics.late),
            ("store_expired", "Checks dropped unsent", metrics.expired),
            ("store_errors", "Calls that failed", metrics.errors),
            ("store_reconnects", "Connections after the first", metrics.reconnects),
        ];
        for (name, help, value) in counters {
            encoder
                .encode_descriptor(name, help, None, MetricType::Counter)?
                .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
        }
        let bounds = LATENCY_BOUNDS_US.iter().map(|&us| us as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(metrics.latency_buckets).collect();
        let count = metrics.latency_buckets.iter().sum();
        encoder
            .encode_descriptor(
                "store_latency_seconds",
                "What answered calls took",
                None,
                MetricType::Histogram,
            )?
            .encode_histogram::<NoLabelSet>(metrics.latency_sum_us as f64 / 1e6, count, &buckets, None)
    }
}
