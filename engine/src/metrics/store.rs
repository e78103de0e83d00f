//! The metrics of the stores in use, by the name of the store, read at each scrape. They start again at zero with a
//! new store, which Prometheus handles like a restart.

use std::fmt::Error;
use std::sync::Arc;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, NoLabelSet};
use prometheus_client::metrics::MetricType;

use sluice_store::redis::{LATENCY_BOUNDS_US, RedisMetrics};
use sluice_store::{Limiter, LimiterMetrics, StoreError, StoreHealth};

use crate::stores::CurrentLimiters;

/// Collects the metrics of the stores in use.
#[derive(Debug)]
pub(crate) struct StoreMetrics(pub(crate) CurrentLimiters);

/// A metric: its name, its help text and how its value is read.
type Row<T> = (&'static str, &'static str, fn(&T) -> u64);

/// The metrics of each store that has them, by the name of the store.
type Named<T> = [(String, T)];

impl Collector for StoreMetrics {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), Error> {
        let limiters: Vec<(String, Arc<Limiter>)> =
            self.0.load().iter().map(|(name, limiter)| (name.clone(), limiter.clone())).collect();
        gauges(
            &mut encoder,
            &limiters,
            &[(
                "store_healthy",
                "1 if the last call to the store succeeded; 0 if it failed, or if there was none",
                |limiter| u64::from(limiter.health() == StoreHealth::Healthy),
            )],
        )?;
        local(&mut encoder, &read(&limiters, Limiter::metrics))?;
        redis(&mut encoder, &read(&limiters, |limiter| Some(limiter.redis()?.metrics())))?;
        let keys = read(&limiters, |limiter| Some(limiter.memory()?.keys() as u64));
        gauges(&mut encoder, &keys, &[("store_keys", "Counters in the memory store", |keys| *keys)])
    }
}

/// Reads the metrics of the stores that have them.
fn read<T>(limiters: &Named<Arc<Limiter>>, metrics: impl Fn(&Limiter) -> Option<T>) -> Vec<(String, T)> {
    limiters.iter().filter_map(|(name, limiter)| Some((name.clone(), metrics(limiter)?))).collect()
}

fn redis(encoder: &mut DescriptorEncoder<'_>, stores: &Named<RedisMetrics>) -> Result<(), Error> {
    gauges(
        encoder,
        stores,
        &[(
            "store_circuit_open",
            "1 while the circuit is open: Redis failed, and no call is sent until a new connection works",
            |store| store.circuit_open.into(),
        )],
    )?;
    counters(
        encoder,
        stores,
        &[
            ("store_calls", "Script calls to Redis; each carries one or more checks", |store| store.calls),
            (
                "store_checks",
                "Checks sent to Redis; divided by the calls, the mean size of a batch",
                |store| store.checks,
            ),
            ("store_merged", "Checks merged with an equal check of the same call", |store| store.merged),
            ("store_timeouts", "Calls that Redis did not answer within the latency budget", |store| {
                store.timeouts
            }),
            ("store_late", "Calls that reached Redis after their deadline and changed nothing", |store| {
                store.late
            }),
            (
                "store_expired",
                "Checks dropped from the queue because their latency budget had run out",
                |store| store.expired,
            ),
            (
                "store_errors",
                "Calls that Redis answered with an error, or that lost their connection",
                |store| store.errors,
            ),
            ("store_reconnects", "Connections to a Redis server after the first one", |store| {
                store.reconnects
            }),
        ],
    )?;
    if stores.is_empty() {
        return Ok(());
    }
    let help = "Checks without an answer of Redis, by fault; the same words as in x-sluice-store-failure";
    let mut faults = encoder.encode_descriptor("store_faults", help, None, MetricType::Counter)?;
    for (name, store) in stores {
        for (error, count) in StoreError::ALL.iter().zip(store.faults) {
            let labels = [("store", name.as_str()), ("fault", error.as_str())];
            faults.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&count, None)?;
        }
    }
    let help = "Duration of answered calls to Redis, in seconds";
    let mut latency =
        encoder.encode_descriptor("store_latency_seconds", help, None, MetricType::Histogram)?;
    for (name, store) in stores {
        let bounds = LATENCY_BOUNDS_US.iter().map(|&us| us as f64 / 1e6).chain([f64::INFINITY]);
        let buckets: Vec<(f64, u64)> = bounds.zip(store.latency_buckets).collect();
        let count = store.latency_buckets.iter().sum();
        latency.encode_family(&[("store", name.as_str())])?.encode_histogram::<NoLabelSet>(
            store.latency_sum_us as f64 / 1e6,
            count,
            &buckets,
            None,
        )?;
    }
    Ok(())
}

/// Encodes the metrics of quota leases, local quota and remembered denials.
fn local(encoder: &mut DescriptorEncoder<'_>, stores: &Named<LimiterMetrics>) -> Result<(), Error> {
    counters(
        encoder,
        stores,
        &[
            (
                "denials_remembered",
                "Requests denied by a remembered denial, without a call to the store",
                |store| store.remembered_denials,
            ),
            (
                "store_counters_lost",
                "Counters that the store had lost before they could expire: by eviction, FLUSHALL or a restart without data",
                |store| store.lost_counters,
            ),
            ("lease_requests", "Requests that matched a leased limit, once for each limit", |store| {
                store.leases.requests
            }),
            (
                "lease_denied",
                "Requests denied by a leased limit without a call to the store, once for each limit",
                |store| store.leases.denied_locally,
            ),
            (
                "lease_calls",
                "Requests under a leased limit that needed a call of their own, once for each limit",
                |store| store.leases.single_calls,
            ),
            ("lease_takes", "Calls for quota of a leased limit, granted or not", |store| {
                store.leases.acquisitions
            }),
            ("lease_returns", "Calls that returned unused quota of a leased limit", |store| {
                store.leases.returns
            }),
            ("lease_quota_taken", "Quota of leased limits acquired from the store, in requests", |store| {
                store.leases.acquired
            }),
            ("lease_quota_returned", "Quota of leased limits returned unused, in requests", |store| {
                store.leases.returned
            }),
            ("lease_quota_lost", "Quota of leased limits that expired unused, in requests", |store| {
                store.leases.expired
            }),
            ("share_admitted", "Checks admitted by local quota in place of the store", |store| {
                store.local_quota.admitted
            }),
            ("share_denied", "Checks denied by local quota in place of the store", |store| {
                store.local_quota.denied
            }),
            ("share_handed_over", "Counters whose local usage was flushed to the store", |store| {
                store.local_quota.flushed
            }),
        ],
    )?;
    gauges(
        encoder,
        stores,
        &[
            (
                "lease_keys",
                "Counters of leased limits that this sidecar holds, one for each limit and key",
                |store| store.leases.keys,
            ),
            ("share_pending", "Counters whose local usage is waiting to be flushed to the store", |store| {
                store.local_quota.pending
            }),
        ],
    )
}

fn counters<T>(encoder: &mut DescriptorEncoder<'_>, stores: &Named<T>, rows: &[Row<T>]) -> Result<(), Error> {
    for (metric, help, value) in rows {
        if stores.is_empty() {
            return Ok(());
        }
        let mut family = encoder.encode_descriptor(metric, help, None, MetricType::Counter)?;
        for (name, store) in stores {
            let labels = [("store", name.as_str())];
            family.encode_family(&labels)?.encode_counter::<NoLabelSet, _, u64>(&value(store), None)?;
        }
    }
    Ok(())
}

fn gauges<T>(encoder: &mut DescriptorEncoder<'_>, stores: &Named<T>, rows: &[Row<T>]) -> Result<(), Error> {
    for (metric, help, value) in rows {
        if stores.is_empty() {
            return Ok(());
        }
        let mut family = encoder.encode_descriptor(metric, help, None, MetricType::Gauge)?;
        for (name, store) in stores {
            family.encode_family(&[("store", name.as_str())])?.encode_gauge(&(value(store) as i64))?;
        }
    }
    Ok(())
}
