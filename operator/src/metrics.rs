//! The operator's metrics. Every metric is named here.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct AdmissionLabels {
    webhook: &'static str,
    outcome: &'static str,
}

/// The operator's metrics.
pub struct Metrics {
    registry: Registry,
    admission: Family<AdmissionLabels, Counter>,
    events: Counter,
    denied: Counter,
    reviewed: Counter,
    reconciles: Counter,
    failures: Counter,
    sessions: Gauge<i64>,
    leader: Gauge<i64>,
    shadow: Gauge<i64>,
}

impl Default for Metrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("sluice_operator");
        let admission = Family::default();
        let (events, denied, reviewed) = (Counter::default(), Counter::default(), Counter::default());
        let (reconciles, failures) = (Counter::default(), Counter::default());
        let (sessions, leader, shadow) = (Gauge::default(), Gauge::default(), Gauge::default());
        registry.register(
            "admission_reviews",
            "Admission reviews answered, by webhook and outcome",
            admission.clone(),
        );
        registry.register("stream_events", "Events sent to sidecars", events.clone());
        registry.register(
            "streams_denied",
            "Connections of sidecars denied because their token or pod was not accepted",
            denied.clone(),
        );
        registry.register(
            "token_reviews",
            "Tokens of sidecars that the API server reviewed, because its public keys did not decide about them",
            reviewed.clone(),
        );
        registry.register("reconciles", "Reconciles of policies, including failed ones", reconciles.clone());
        registry.register(
            "reconcile_failures",
            "Reconciles of policies that failed and will be retried",
            failures.clone(),
        );
        registry.register(
            "streams",
            "Sidecars that are connected, or were connected during the last 30 seconds",
            sessions.clone(),
        );
        registry.register("leader", "1 if this replica is the leader", leader.clone());
        registry.register(
            "shadow",
            "1 while the installation turns all policies to Shadow, so no request is rejected",
            shadow.clone(),
        );
        Self { registry, admission, events, denied, reviewed, reconciles, failures, sessions, leader, shadow }
    }
}

impl Metrics {
    /// Counts an admission review.
    pub fn admission(&self, webhook: &'static str, outcome: &'static str) {
        self.admission.get_or_create(&AdmissionLabels { webhook, outcome }).inc();
    }

    /// Counts an event sent to a sidecar.
    pub fn event_sent(&self) {
        self.events.inc();
    }

    /// Counts a denied session.
    pub fn session_denied(&self) {
        self.denied.inc();
    }

    /// Counts a review of a sidecar's token.
    pub fn token_reviewed(&self) {
        self.reviewed.inc();
    }

    /// Counts a reconcile and its failure.
    pub fn reconciled(&self, ok: bool) {
        self.reconciles.inc();
        if !ok {
            self.failures.inc();
        }
    }

    /// Records that this replica is the leader.
    pub fn set_leader(&self) {
        self.leader.set(1);
    }

    /// Records whether the installation turns all policies to Shadow.
    pub fn set_shadow(&self, shadow: bool) {
        self.shadow.set(i64::from(shadow));
    }

    /// Returns all metrics in the OpenMetrics text format.
    #[must_use]
    pub fn text(&self, sessions: usize) -> String {
        self.sessions.set(i64::try_from(sessions).unwrap_or(i64::MAX));
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}
