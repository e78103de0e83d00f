//! Counters of spans.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

/// The labels of spans that are sent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OutcomeLabels {
    outcome: &'static str,
}

/// Numbers of spans by what became of them, and of requests without. Clones share them.
#[derive(Debug, Clone)]
pub struct SpanMetrics {
    /// The collector has them.
    pub(super) exported: Counter,
    /// The collector has refused them, or did not answer.
    pub(super) failed: Counter,
    /// Too many others waited for the collector.
    pub(super) dropped: Counter,
    /// Sampled requests without spans, because others of the same second had them.
    pub(super) requests_without: Counter,
}

impl SpanMetrics {
    /// Adds the counters to a registry.
    pub fn register(registry: &mut Registry) -> Self {
        let family = Family::<OutcomeLabels, Counter>::default();
        let of = |outcome| family.get_or_create_owned(&OutcomeLabels { outcome });
        let [exported, failed, dropped] = ["exported", "failed", "dropped"].map(of);
        registry.register(
            "spans",
            "Spans of traces by outcome: exported to the collector, failed to arrive there, or dropped because too many waited for it",
            family,
        );
        let requests_without = Counter::default();
        registry.register(
            "requests_without_spans",
            "Sampled requests without spans, because 100 others of the same second had them",
            requests_without.clone(),
        );
        Self { exported, failed, dropped, requests_without }
    }
}
