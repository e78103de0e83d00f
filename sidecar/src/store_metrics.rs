//! The numbers of the store and of the layers above it, read when somebody asks for metrics. They begin anew with every new store, which
//! Prometheus takes for a restart.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use sluice_store::layers::LayerMetrics;
use sluice_store::redis::LATENCY_BOUNDS_US;
use sluice_store::{Store, StoreHealth};

use crate::stores::CurrentStore;

/// Reads the store that is in use.
#[derive(Debug)]
pub(crate) struct StoreMetrics(pub(crate) CurrentStore);

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let counting = self.0.load_full();
        let store = counting.as_ref().and_then(|counting| counting.store());
        let healthy = store.is_some_and(|store| store.health() == StoreHealth::Healthy);
        encoder
            .encode_descriptor("store_healthy", "1: the last call succeeded", None, MetricType::Gauge)?
            .encode_gauge(&i64::from(healthy))?;
        if let Some(metrics) = counting.as_ref().and_then(|counting| counting.metrics()) {
            encode_layers(&mut encoder, &metrics)?;
        }
        let metrics = match store.map(|store| &**store) {
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

fn encode_layers(encoder: &mut DescriptorEncoder<'_>, metrics: &LayerMetrics) -> Result<(), Error> {
    let LayerMetrics { lease, share, denials_remembered } = metrics;
    let counters = [
        ("denials_remembered", "Requests denied without asking, as the store had said", *denials_remembered),
        ("lease_requests", "Requests about leased limits: each limit of each request", lease.requests),
        ("lease_denied", "Of those, denied without asking", lease.denied_locally),
        ("lease_calls", "Of those, asked for with a question of their own", lease.single_calls),
        ("lease_takes", "Blocks of quota asked for", lease.takes),
        ("lease_returns", "Blocks given back in whole or in part", lease.returns),
        ("lease_quota_taken", "Quota taken in blocks", lease.taken),
        ("lease_quota_returned", "Of that, given back", lease.returned),
        ("lease_quota_lost", "Of that, ended unused", lease.lost),
        ("share_admitted", "Checks admitted by this pod's share", share.admitted),
        ("share_denied", "Checks denied by this pod's share", share.denied),
        (
            "share_handed_over",
            "Counters that the store was told of after it had not answered",
            share.handed_over,
        ),
    ];
    for (name, help, value) in counters {
        encoder
            .encode_descriptor(name, help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    for (name, help, value) in [
        ("lease_keys", "Keys of leased limits that are known", lease.keys),
        ("share_pending", "Counters that the store is still to be told of", share.pending),
    ] {
        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&(value as i64))?;
    }
    Ok(())
}
