//! The metrics of one limit.

use std::sync::{Arc, LazyLock};
use std::time::Instant;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use sluice_config::prepared::key_usage::KeyUsageMeter;
use sluice_store::KeyUsage;

/// Metrics that are made when they are first used. A domain may have very many limits, most of which are never asked about.
pub(crate) type LazyMetrics = LazyLock<LimitMetrics, Box<dyn FnOnce() -> LimitMetrics + Send>>;

/// The metrics of one limit. A [`Counter`] here is a metric, not the counter of a key.
#[derive(Debug, Clone)]
pub(crate) struct LimitMetrics {
    pub(crate) admitted: Counter,
    /// Requests denied, or shed by an adaptive limit.
    pub(crate) denied: Counter,
    /// Requests that the limit would have denied if it were not in Shadow.
    pub(crate) shadow_denied: Counter,
    /// Requests of clients that the limit has blocked.
    pub(crate) blocked: Option<Counter>,
    /// Requests that the limit would have denied, forwarded with its mark.
    pub(crate) marked: Option<Counter>,
    /// Requests that had met as many limits in Shadow as they may.
    pub(crate) skipped: Counter,
    /// Requests admitted because the store did not answer.
    pub(crate) fallback_admitted: Counter,
    /// Requests denied because the store did not answer.
    pub(crate) fallback_denied: Counter,
    /// Requests admitted, and denied, by local quota because the store did not answer.
    pub(super) local_quota: [Counter; 2],
    /// Requests in the queue, or in the delay queue of a leaky bucket.
    pub(crate) waiting: Option<Gauge>,
    /// 1 while the boosted rates apply, for an elastic limit.
    pub(crate) boosted: Option<Gauge>,
    /// Slots that this process holds, for a shared concurrency limit.
    pub(crate) held: Option<Gauge>,
    pub(crate) adaptive: Option<AdaptiveMetrics>,
    /// For a limit with a maximum number of keys.
    pub(crate) keys: Option<KeyMetrics>,
    /// For a limit whose charges outcomes correct.
    pub(crate) settlements: Option<SettlementMetrics>,
}

/// The metrics of a limit's keys.
#[derive(Debug, Clone)]
pub(crate) struct KeyMetrics {
    /// Checks of new keys that the overflow counter decided.
    pub(super) overflowed: Counter,
    pub(super) usage: Arc<KeyUsageMeter>,
}

/// The metrics of an adaptive limit.
#[derive(Debug, Clone)]
pub(crate) struct AdaptiveMetrics {
    /// The current limit.
    pub(crate) limit: Gauge,
    /// Requests in flight under the limit.
    pub(crate) in_flight: Gauge,
    /// 1 while the limit is lowered to measure the latency without queueing.
    pub(crate) probing: Gauge,
    /// Requests of each priority that were admitted, and that were shed.
    pub(crate) priorities: Vec<[Counter; 2]>,
}

/// The settlements of one limit.
#[derive(Debug, Clone)]
pub(crate) struct SettlementMetrics {
    /// Requests that counted.
    pub(crate) counted: Counter,
    /// Requests that were refunded, because their outcome does not count.
    pub(crate) uncounted: Counter,
    /// Responses without the cost that they should have had.
    pub(crate) missing: Counter,
    /// Corrections to which the store did not answer.
    pub(crate) lost: Counter,
}

impl LimitMetrics {
    /// Records what a response shows about a new key of the limit.
    pub(crate) fn record_key(&self, usage: KeyUsage) {
        if let Some(keys) = &self.keys {
            keys.usage.observe(usage.used, Instant::now());
            if usage.used.is_none() {
                keys.overflowed.inc();
            }
        }
    }

    /// Returns the metric of decisions by local quota.
    pub(crate) fn by_local_quota(&self, admitted: bool) -> &Counter {
        &self.local_quota[usize::from(!admitted)]
    }
}
