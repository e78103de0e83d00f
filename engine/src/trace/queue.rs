//! Spans that wait for the collector.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::time::Duration;

use opentelemetry::Context;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{BatchSpanProcessor, Span, SpanData, SpanProcessor};
use prometheus_client::metrics::counter::Counter;

/// Hands spans over to be sent in batches. It drops and counts those beyond its capacity, which the batches would drop
/// silently.
#[derive(Debug)]
pub(super) struct BoundedQueue {
    batches: BatchSpanProcessor,
    /// Number of spans that are waiting or being sent.
    waiting: Arc<AtomicUsize>,
    dropped: Counter,
}

impl BoundedQueue {
    /// Number of spans that wait at most.
    pub(super) const CAPACITY: usize = 4096;

    /// Creates a queue. Who sends spans subtracts them from `waiting`.
    pub(super) fn new(batches: BatchSpanProcessor, waiting: Arc<AtomicUsize>, dropped: Counter) -> Self {
        Self { batches, waiting, dropped }
    }
}

impl SpanProcessor for BoundedQueue {
    fn on_start(&self, span: &mut Span, context: &Context) {
        self.batches.on_start(span, context);
    }

    fn on_end(&self, span: SpanData) {
        if self.waiting.fetch_add(1, Relaxed) < Self::CAPACITY {
            self.batches.on_end(span);
        } else {
            self.waiting.fetch_sub(1, Relaxed);
            self.dropped.inc();
        }
    }

    fn force_flush(&self) -> OTelSdkResult {
        self.batches.force_flush()
    }

    fn shutdown_with_timeout(&self, timeout: Duration) -> OTelSdkResult {
        self.batches.shutdown_with_timeout(timeout)
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.batches.set_resource(resource);
    }
}
