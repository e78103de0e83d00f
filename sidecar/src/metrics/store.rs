//! The metrics of the store in use, read at each scrape. They start again at zero with a new store, which
//! Prometheus handles like a restart.

use std::fmt::Error;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use sluice_store::redis::{LATENCY_BOUNDS_US, RedisMetrics};
use sluice_store::{LimiterMetrics, StoreError, StoreHealth};

use crate::config::stores::CurrentLimiter;

/// Collects the metrics of the store in use.
#[derive(Debug)]
pub(crate) struct StoreMetrics(pub(crate) CurrentLimiter);

/// A metric: its name, its help text and its value.
type Row = (&'static str, &'static str, u64);

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let limiter = self.0.load_full();
        let healthy = limiter.as_ref().is_some_and(|limiter| limiter.health() == StoreHealth::Healthy);
        let help = "1 if the last call to the store succeeded; 0 if it failed, or if there was none";
        gauges(&mut encoder, [("store_healthy", help, healthy.into())])?;
        let Some(limiter) = limiter else { return Ok(()) };
        if let Some(metrics) = limiter.metrics() {
            local(&mut encoder, &metrics)?;
        }
        if let Some(store) = limiter.redis() {
            redis(&mut encoder, &store.metrics())?;
        }
        if let Some(store) = limiter.memory() {
            gauges(&mut encoder, [("store_keys", "Counters in the memory store", store.keys() as u64)])?;
        }
        Ok(())
    }
}

fn redis(encoder: &mut DescriptorEncoder<'_>, metrics: &RedisMetrics) -> Result<(), Error> {
    gauges(
        encoder,
        [(
            "store_circuit_open",
            "1 while the circuit is open: Redis failed, and no call is sent until a new connection works",
            metrics.circuit_open.into(),
        )],
    )?;
    counters(
        encoder,
        [
            ("store_calls", "Script calls to Redis; each carries one or more checks", metrics.calls),
            (
                "store_checks",
                "Checks sent to Redis; divided by the calls, the mean size of a batch",
                metrics.checks,
            ),
            ("store_merged", "Checks merged with an equal check of the same call", metrics.merged),
            ("store_timeouts", "Calls that Redis did not answer within the latency budget", metrics.timeouts),
            ("store_late", "Calls that reached Redis after their deadline and changed nothing", metrics.late),
            (
                "store_expired",
                "Checks dropped from the queue because their latency budget had run out",
                metrics.expired,
            ),
            (
                "store_errors",
                "Calls that Redis answered with an error, or that lost their connection",
                metrics.errors,
            ),
            ("store_reconnects", "Connections to a Redis server after the first one", metrics.reconnects),
        ],
    )?;
    let help = "Checks without an answer of Redis, by fault; the same words as in x-sluice-store-failure";
    let mut faults = encoder.encode_descriptor("store_faults", help, None, MetricType::Counter)?;
    for (error, count) in StoreError::ALL.iter().zip(metrics.faults) {
        let labels = [("fault", error.as_str())];
        faults.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
    }
    let bounds = LATENCY_BOUNDS_US.iter().map(|&us| us as f64 / 1e6).chain([f64::INFINITY]);
    let buckets: Vec<(f64, u64)> = bounds.zip(metrics.latency_buckets).collect();
    let count = metrics.latency_buckets.iter().sum();
    let help = "Duration of answered calls to Redis, in seconds";
    encoder
        .encode_descriptor("store_latency_seconds", help, None, MetricType::Histogram)?
        .encode_histogram::<NoLabelSet>(metrics.latency_sum_us as f64 / 1e6, count, &buckets, None)
}

/// Encodes the metrics of quota leases, local quota and remembered denials.
fn local(encoder: &mut DescriptorEncoder<'_>, metrics: &LimiterMetrics) -> Result<(), Error> {
    let LimiterMetrics { leases, local_quota, remembered_denials } = metrics;
    counters(
        encoder,
        [
            (
                "denials_remembered",
                "Requests denied by a remembered denial, without a call to the store",
                *remembered_denials,
            ),
            ("lease_requests", "Requests that matched a leased limit, once for each limit", leases.requests),
            (
                "lease_denied",
                "Requests denied by a leased limit without a call to the store, once for each limit",
                leases.denied_locally,
            ),
            (
                "lease_calls",
                "Requests under a leased limit that needed a call of their own, once for each limit",
                leases.single_calls,
            ),
            ("lease_takes", "Calls for quota of a leased limit, granted or not", leases.acquisitions),
            ("lease_returns", "Calls that returned unused quota of a leased limit", leases.returns),
            (
                "lease_quota_taken",
                "Quota of leased limits acquired from the store, in requests",
                leases.acquired,
            ),
            ("lease_quota_returned", "Quota of leased limits returned unused, in requests", leases.returned),
            ("lease_quota_lost", "Quota of leased limits that expired unused, in requests", leases.expired),
            ("share_admitted", "Checks admitted by local quota in place of the store", local_quota.admitted),
            ("share_denied", "Checks denied by local quota in place of the store", local_quota.denied),
            ("share_handed_over", "Counters whose local usage was flushed to the store", local_quota.flushed),
        ],
    )?;
    gauges(
        encoder,
        [
            (
                "lease_keys",
                "Counters of leased limits that this sidecar holds, one for each limit and key",
                leases.keys,
            ),
            (
                "share_pending",
                "Counters whose local usage is waiting to be flushed to the store",
                local_quota.pending,
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
