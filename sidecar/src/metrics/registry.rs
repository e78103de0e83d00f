//! The metrics of requests and connections, and the one place where they are named.

use std::sync::Arc;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::metrics::ended::{EndReason, EndedStreams};
use crate::metrics::labels::{BuildLabels, ReasonLabels, begin_with_zero};
use crate::metrics::latency::Latency;
use sluice_engine::trace::SpanMetrics;

/// The metrics of a sidecar. Clones share them.
#[derive(Debug, Clone)]
pub(crate) struct Metrics {
    upstream_errors: Family<ReasonLabels, Counter>,
    refused_requests: Family<ReasonLabels, Counter>,
    ended_connections: Family<ReasonLabels, Counter>,
    pub(crate) ended_streams: EndedStreams,
    pub(crate) panics: Counter,
    /// Open connections of clients.
    pub(crate) connections: Gauge,
    /// Time that requests spend before they are forwarded or rejected.
    pub(crate) added_latency: Latency,
    /// Time that Sluice adds to requests that may wait in a queue.
    pub(crate) queued_latency: Latency,
    pub(crate) spans: SpanMetrics,
    registry: Arc<Registry>,
}

impl Metrics {
    /// Adds the metrics of requests to a registry, which has those of decisions already.
    pub(crate) fn new(mut registry: Registry) -> Self {
        let build = Family::<BuildLabels, Gauge>::default();
        build.get_or_create(&BuildLabels { version: env!("CARGO_PKG_VERSION") }).set(1);
        registry.register("build_info", "1, with the release of the sidecar as a label", build);
        let (added_latency, queued_latency) = (Latency::added(), Latency::queued());
        for latency in [&added_latency, &queued_latency] {
            registry.register_collector(Box::new(latency.clone()));
        }
        let spans = SpanMetrics::register(&mut registry);
        let upstream_errors = Family::default();
        registry.register(
            "upstream_errors",
            "Requests that the application did not answer",
            upstream_errors.clone(),
        );
        let refused_requests = Family::default();
        registry.register(
            "refused_requests",
            "Requests refused because they are malformed or ambiguous, meet more than 32 limits, or came before the first policies",
            refused_requests.clone(),
        );
        let ended_connections = Family::default();
        begin_with_zero(&ended_connections, EndReason::ALL.map(EndReason::label));
        registry.register(
            "ended_connections",
            "Connections of clients that the sidecar ended by a timeout or to make room for others",
            ended_connections.clone(),
        );
        let ended_streams = EndedStreams::default();
        registry.register(
            "ended_streams",
            "Streams of HTTP/2 that the sidecar ended because their receiver did not read",
            ended_streams.0.clone(),
        );
        let panics = Counter::default();
        registry.register(
            "panics",
            "Requests and connections that ended by a defect of the sidecar",
            panics.clone(),
        );
        let connections = Gauge::default();
        registry.register("open_connections", "Open connections of clients", connections.clone());
        let registry = Arc::new(registry);
        Self {
            upstream_errors,
            refused_requests,
            ended_connections,
            ended_streams,
            panics,
            connections,
            added_latency,
            queued_latency,
            spans,
            registry,
        }
    }

    /// Adds the reasons of errors of the application and of refused requests, which are then counted from 0.
    pub(crate) fn add_reasons(
        &self,
        upstream_errors: impl IntoIterator<Item = &'static str>,
        refused_requests: impl IntoIterator<Item = &'static str>,
    ) {
        begin_with_zero(&self.upstream_errors, upstream_errors);
        begin_with_zero(&self.refused_requests, refused_requests);
    }

    pub(crate) fn upstream_error(&self, reason: &'static str) {
        self.upstream_errors.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn refused_request(&self, reason: &'static str) {
        self.refused_requests.get_or_create(&ReasonLabels { reason }).inc();
    }

    pub(crate) fn ended_connection(&self, reason: EndReason) {
        self.ended_connections.get_or_create(&ReasonLabels { reason: reason.label() }).inc();
    }

    /// Encodes all metrics in the OpenMetrics text format.
    pub(crate) fn text(&self) -> String {
        let mut text = String::new();
        // Writing to a string does not fail.
        let _ = prometheus_client::encoding::text::encode(&mut text, &self.registry);
        text
    }
}
