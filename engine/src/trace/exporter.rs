//! Sends spans to the collector, and counts them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

use opentelemetry_otlp::{
    ExporterBuildError, Protocol, SpanExporter, WithExportConfig as _, WithHttpConfig as _,
};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::{OTelSdkError, OTelSdkResult};
use opentelemetry_sdk::trace::{SpanData, SpanExporter as SpanExport};
use sluice_config::trace_options::CollectorUrl;

use crate::trace::metrics::SpanMetrics;
use crate::trace::transport::{LastCall, TIMEOUT, Transport};
use sluice_host::guard::guard;

/// Sends spans in OTLP over HTTP. It logs when the collector begins to fail and when it has recovered.
#[derive(Debug)]
pub(super) struct CountingExporter {
    exporter: SpanExporter,
    last_call: Arc<LastCall>,
    metrics: SpanMetrics,
    waiting: Arc<AtomicUsize>,
    collector: CollectorUrl,
    is_failing: AtomicBool,
}

impl CountingExporter {
    /// Creates an exporter, which subtracts the spans that it has sent from `waiting`.
    pub(super) fn new(
        collector: &CollectorUrl,
        metrics: SpanMetrics,
        waiting: Arc<AtomicUsize>,
    ) -> Result<Self, ExporterBuildError> {
        let last_call = Arc::<LastCall>::default();
        let exporter = SpanExporter::builder()
            .with_http()
            .with_protocol(Protocol::HttpBinary)
            .with_http_client(Transport::new(last_call.clone()))
            .with_endpoint(collector.as_str())
            .with_timeout(TIMEOUT)
            .build()?;
        let is_failing = AtomicBool::new(false);
        Ok(Self { exporter, last_call, metrics, waiting, collector: collector.clone(), is_failing })
    }

    /// Logs the first failure after a success.
    fn failed(&self, error: &str) {
        if !self.is_failing.swap(true, Relaxed) {
            tracing::warn!(collector = %self.collector, error, "cannot send spans to the collector");
        }
    }
}

impl SpanExport for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let count = batch.len();
        // Not even a defect of this path ends the sidecar.
        let result = guard(self.exporter.export(batch)).await;
        let result = result.unwrap_or_else(|_| Err(OTelSdkError::InternalFailure("a panic".into())));
        self.waiting.fetch_sub(count, Relaxed);
        let (error, rejected) = self.last_call.take();
        let rejected = rejected.min(count as u64);
        match (&result, error) {
            (Err(failure), error) => {
                self.failed(&error.unwrap_or_else(|| failure.to_string()));
                self.metrics.failed.inc_by(count as u64);
            }
            (Ok(()), error) => {
                if rejected > 0 {
                    self.failed(&error.unwrap_or_default());
                } else if self.is_failing.swap(false, Relaxed) {
                    tracing::info!(collector = %self.collector, "the collector takes spans again");
                }
                self.metrics.failed.inc_by(rejected);
                self.metrics.exported.inc_by(count as u64 - rejected);
            }
        }
        result
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
