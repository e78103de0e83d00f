//! The operator's metrics, all of them named here.

use std::sync::atomic::AtomicU64;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Admission {
    webhook: &'static str,
    outcome: &'static str,
}

/// The metrics.
pub struct Metrics {
    registry: Registry,
    admission: Family<Admission, Counter>,
    events: Counter,
    denied: Counter,
    reconciles: Counter,
    failures: Counter,
    streams: Gauge<i64>,
    leader: Gauge<i64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sluice_operator");
        let metrics = (
            Family::<Admission, Counter>::default(),
            Counter::<u64, AtomicU64>::default(),
            Counter::<u64, AtomicU64>::default(),
            Counter::<u64, AtomicU64>::default(),
            Counter::<u64, AtomicU64>::default(),
            Gauge::<i64>::default(),
            Gauge::<i64>::default(),
        );
        let (admission, events, denied, reconciles, failures, streams, leader) = metrics;
        registry.register("admission_reviews", "Admission reviews by webhook and outcome", admission.clone());
        registry.register("stream_events", "Events sent to sidecars", events.clone());
        registry.register("streams_denied", "Streams denied: token or pod not accepted", denied.clone());
        registry.register("reconciles", "Policies reconciled", reconciles.clone());
        registry.register(
            "reconcile_failures",
            "Reconciles that failed and will be tried again",
            failures.clone(),
        );
        registry.register(
            "streams",
            "Sidecars with a stream, or with one that has just ended",
            streams.clone(),
        );
        registry.register("leader", "1 if this replica leads", leader.clone());
        Self { registry, admission, events, denied, reconciles, failures, streams, leader }
    }
}

impl Metrics {
    /// An admission review was answered.
    pub fn admission(&self, webhook: &'static str, outcome: &'static str) {
        self.admission.get_or_create(&Admission { webhook, outcome }).inc();
    }

    /// An event was sent to a sidecar.
    pub fn event_sent(&self) {
        self.events.inc();
    }

    /// A stream was denied.
    pub fn stream_denied(&self) {
        self.denied.inc();
    }

    /// A policy was reconciled, or could not be.
    pub fn reconciled(&self, ok: bool) {
        self.reconciles.inc();
        if !ok {
            self.failures.inc();
        }
    }

    /// This replica leads.
    pub fn leads(&self) {
        self.leader.set(1);
    }

    /// All metrics as text.
    #[must_use]
    pub fn text(&self, streams: usize) -> String {
        self.streams.set(i64::try_from(streams).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}
