//! Sends spans to the collector, and counts them.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use opentelemetry_otlp::{ExporterBuildError, SpanExporter, WithExportConfig as _, WithHttpConfig as _};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::error::OTelSdkResult;
use opentelemetry_sdk::trace::{SpanData, SpanExporter as SpanExport};
use sluice_config::trace_options::CollectorUrl;

use crate::metrics::spans::SpanMetrics;
use crate::trace::transport::Transport;

/// Sends spans in OTLP over HTTP. It logs when the collector begins to fail and when it has recovered.
#[derive(Debug)]
pub(super) struct CountingExporter {
    exporter: SpanExporter,
    metrics: SpanMetrics,
    collector: CollectorUrl,
    is_failing: AtomicBool,
}

impl CountingExporter {
    pub(super) fn new(collector: &CollectorUrl, metrics: SpanMetrics) -> Result<Self, ExporterBuildError> {
        let exporter = SpanExporter::builder()
            .with_http()
            .with_http_client(Transport::default())
            .with_endpoint(collector.as_str())
            .build()?;
        Ok(Self { exporter, metrics, collector: collector.clone(), is_failing: AtomicBool::new(false) })
    }
}

impl SpanExport for CountingExporter {
    async fn export(&self, batch: Vec<SpanData>) -> OTelSdkResult {
        let (count, collector) = (batch.len() as u64, &self.collector);
        let result = self.exporter.export(batch).await;
        match &result {
            Ok(()) => {
                self.metrics.exported.inc_by(count);
                if self.is_failing.swap(false, Relaxed) {
                    tracing::info!(%collector, "the collector takes spans again");
                }
            }
            Err(error) => {
                self.metrics.failed.inc_by(count);
                if !self.is_failing.swap(true, Relaxed) {
                    tracing::warn!(%collector, %error, "cannot send spans to the collector");
                }
            }
        }
        result
    }

    fn set_resource(&mut self, resource: &Resource) {
        self.exporter.set_resource(resource);
    }
}
