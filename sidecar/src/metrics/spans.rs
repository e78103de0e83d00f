//! Counters of spans.

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::registry::Registry;

use crate::metrics::labels::OutcomeLabels;

/// Numbers of spans by what became of them. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct SpanMetrics {
    /// The collector has them.
    pub(crate) exported: Counter,
    /// The collector has refused them, or did not answer.
    pub(crate) failed: Counter,
    /// Too many others waited for the collector.
    pub(crate) dropped: Counter,
    /// Sampled requests without a span, because others of the same second had one.
    pub(crate) skipped: Counter,
}

impl SpanMetrics {
    pub(crate) fn register(registry: &mut Registry) -> Self {
        let family = Family::<OutcomeLabels, Counter>::default();
        let of = |outcome| family.get_or_create_owned(&OutcomeLabels { outcome });
        let [exported, failed, dropped, skipped] = ["exported", "failed", "dropped", "skipped"].map(of);
        let metrics = Self { exported, failed, dropped, skipped };
        registry.register(
            "spans",
            "Spans of traces by outcome: exported to the collector, failed to arrive there, or dropped because too many waited for it. skipped counts requests: sampled, and without spans because of the 100 a second",
            family,
        );
        metrics
    }
}
