//! The numbers of the store and of the layers above it, read when somebody asks for metrics. They begin anew with every new store, which
//! Prometheus takes for a restart.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;
use sluice_store::layers::LimiterMetrics;
use sluice_store::redis::{LATENCY_BOUNDS_US, RedisMetrics};
use sluice_store::{Store, StoreError, StoreHealth};

use crate::config::stores::CurrentStore;

/// Reads the store that is in use.
#[derive(Debug)]
pub(crate) struct StoreMetrics(pub(crate) CurrentStore);

/// A name, what is counted and in which unit, and the number.
type Row = (&'static str, &'static str, u64);

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let counting = self.0.load_full();
        let store = counting.as_ref().and_then(|counting| counting.store());
        let healthy = store.is_some_and(|store| store.health() == StoreHealth::Healthy);
        gauges(
            &mut encoder,
            [(
                "store_healthy",
                "1: the last call to the store succeeded; 0: it failed, none was made yet, or there is no store",
                healthy.into(),
            )],
        )?;
        if let Some(metrics) = counting.as_ref().and_then(|counting| counting.metrics()) {
            layers(&mut encoder, &metrics)?;
        }
        match store.map(|store| &**store) {
            Some(Store::Redis(store)) => redis(&mut encoder, &store.metrics()),
            Some(Store::Memory(store)) => {
                gauges(&mut encoder, [("store_keys", "Counters in the memory store", store.keys() as u64)])
            }
            None => Ok(()),
        }
    }
}

fn redis(encoder: &mut DescriptorEncoder<'_>, metrics: &RedisMetrics) -> Result<(), Error> {
    gauges(
        encoder,
        [(
            "store_circuit_open",
            "1: Redis failed, and no question is sent before a new connection works",
            metrics.circuit_open.into(),
        )],
    )?;
    counters(
        encoder,
        [
            ("store_calls", "Calls to Redis that carried questions", metrics.calls),
            (
                "store_checks",
                "Questions sent to Redis; divided by the calls: how many share one",
                metrics.checks,
            ),
            (
                "store_merged",
                "Questions sent to Redis as a repetition of an equal one in the same call",
                metrics.merged,
            ),
            (
                "store_timeouts",
                "Calls to Redis without an answer within the latency budget",
                metrics.timeouts,
            ),
            ("store_late", "Calls that Redis took up after their deadline and did not obey", metrics.late),
            (
                "store_expired",
                "Questions dropped before they were sent to Redis, as nobody waited any more",
                metrics.expired,
            ),
            ("store_errors", "Calls to Redis that failed with an error", metrics.errors),
            (
                "store_reconnects",
                "Connections made to each server of Redis after the first",
                metrics.reconnects,
            ),
        ],
    )?;
    let help = "Questions to Redis that were not answered, by the word of x-sluice-store-failure";
    let mut faults = encoder.encode_descriptor("store_faults", help, None, MetricType::Counter)?;
    for (error, count) in StoreError::ALL.iter().zip(metrics.faults) {
        let labels = [("fault", error.as_str())];
        faults.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
    }
    let bounds = LATENCY_BOUNDS_US.iter().map(|&us| us as f64 / 1e6).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(metrics.latency_buckets).collect();
    let count = metrics.latency_buckets.iter().sum();
    let help = "How long calls to Redis took that were answered, in seconds";
    encoder
        .encode_descriptor("store_latency_seconds", help, None, MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(metrics.latency_sum_us as f64 / 1e6, count, &buckets, None)
}

fn layers(encoder: &mut DescriptorEncoder<'_>, metrics: &LimiterMetrics) -> Result<(), Error> {
    let LimiterMetrics { lease, share, denials_remembered } = metrics;
    counters(
        encoder,
        [
            (
                "denials_remembered",
                "Requests denied without asking the store, which had denied the same before",
                *denials_remembered,
            ),
            ("lease_requests", "Requests that met a leased limit; once for each limit", lease.requests),
            (
                "lease_denied",
                "Requests denied by a leased limit without asking the store; once for each limit",
                lease.denied_locally,
            ),
            (
                "lease_calls",
                "Requests that asked the store about a leased limit by a question of their own; once for each limit",
                lease.single_calls,
            ),
            (
                "lease_takes",
                "Questions that the store answered with a block of quota of a leased limit, also an empty one",
                lease.takes,
            ),
            (
                "lease_returns",
                "Blocks of quota of leased limits given back to the store, in whole or in part",
                lease.returns,
            ),
            (
                "lease_quota_taken",
                "Quota of leased limits taken from the store in blocks, in requests",
                lease.taken,
            ),
            (
                "lease_quota_returned",
                "Quota of leased limits taken in blocks and given back unused, in requests",
                lease.returned,
            ),
            (
                "lease_quota_lost",
                "Quota of leased limits taken in blocks that ended neither used nor given back, in requests",
                lease.lost,
            ),
            (
                "share_admitted",
                "Checks admitted by this pod's share of a limit instead of the store",
                share.admitted,
            ),
            (
                "share_denied",
                "Checks denied by this pod's share of a limit instead of the store",
                share.denied,
            ),
            (
                "share_handed_over",
                "Counters of which the store was told what this pod had admitted by its share",
                share.handed_over,
            ),
        ],
    )?;
    gauges(
        encoder,
        [
            (
                "lease_keys",
                "Counters of leased limits that this sidecar knows: one for each limit and client",
                lease.keys,
            ),
            (
                "share_pending",
                "Counters of which the store is still to be told what this pod admitted by its share",
                share.pending,
            ),
        ],
    )
}

fn counters(encoder: &mut DescriptorEncoder<'_>, rows: impl IntoIterator<Item = Row>) -> Result<(), Error> {
    for (name, help, value) in rows {
        encoder
            .encode_descriptor(name, help, None, MetricType::Counter)?
            .encode_counter::<NoLabelSet, _, u64>(&value, None)?;
    }
    Ok(())
}

fn gauges(encoder: &mut DescriptorEncoder<'_>, rows: impl IntoIterator<Item = Row>) -> Result<(), Error> {
    for (name, help, value) in rows {
        encoder.encode_descriptor(name, help, None, MetricType::Gauge)?.encode_gauge(&(value as i64))?;
    }
    Ok(())
}
