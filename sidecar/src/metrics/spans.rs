//! Counters of spans.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::metrics::labels::OutcomeLabels;

/// Numbers of spans by what became of them, and of requests without. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct SpanMetrics {
    /// The collector has them.
    pub(crate) exported: Counter,
    /// The collector has refused them, or did not answer.
    pub(crate) failed: Counter,
    /// Too many others waited for the collector.
    pub(crate) dropped: Counter,
    /// Sampled requests without spans, because others of the same second had them.
    pub(crate) requests_without: Counter,
}

impl SpanMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
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
