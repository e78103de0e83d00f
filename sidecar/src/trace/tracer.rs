//! Chooses the requests that have a span.

use std::sync::Arc;
use std::time::Duration;

use http::Request;
use opentelemetry::KeyValue;
use opentelemetry::trace::TracerProvider as _;
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider,
};
use sluice_config::trace_options::{CollectorUrl, SampleRatio};

use crate::inbound::protocol::Protocol;
use crate::metrics::spans::SpanMetrics;
use crate::per_second::PerSecond;
use crate::trace::context::parent;
use crate::trace::exporter::CountingExporter;
use crate::trace::span::RequestSpan;

/// Requests with spans in a second, whatever clients send.
const REQUESTS_PER_SECOND: u64 = 100;
/// Longest time that a span waits for others before it is sent.
const SEND_EVERY: Duration = Duration::from_secs(1);
/// Spans that wait while the collector does not answer: those of about 10 s, after which a call to it ends.
const MAX_WAITING: usize = 4096;
/// Longest time that the last spans may take when the sidecar ends.
const LAST_SPANS: Duration = Duration::from_secs(3);

/// Starts spans of requests, and sends them to a collector. It is not on the path of requests without a span.
#[derive(Debug)]
pub(crate) struct Tracer {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    ratio: f64,
    chosen: PerSecond<REQUESTS_PER_SECOND>,
    metrics: SpanMetrics,
}

impl Tracer {
    /// Creates a tracer, with a thread of its own. Attributes of `OTEL_RESOURCE_ATTRIBUTES` describe the pod in every span.
    pub(crate) fn start(
        collector: &CollectorUrl,
        ratio: SampleRatio,
        metrics: SpanMetrics,
    ) -> Result<Arc<Self>, ExporterBuildError> {
        let exporter = CountingExporter::new(collector, metrics.clone())?;
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(MAX_WAITING)
            .with_scheduled_delay(SEND_EVERY)
            .build();
        let resource = Resource::builder_empty()
            .with_service_name("sluice-sidecar")
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_detector(Box::new(EnvResourceDetector::new()))
            .build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            // Chosen here.
            .with_sampler(Sampler::AlwaysOn)
            .with_span_processor(BatchSpanProcessor::builder(exporter).with_batch_config(config).build())
            .build();
        let tracer = provider.tracer("sluice");
        Ok(Arc::new(Self { provider, tracer, ratio: ratio.get(), chosen: PerSecond::default(), metrics }))
    }

    /// Starts the span of a request that has just arrived, if its client has sampled the trace, or if it has none and is
    /// sampled here.
    pub(crate) fn span<B>(&self, request: &mut Request<B>, protocol: Protocol) -> Option<Box<RequestSpan>> {
        let parent = parent(request.headers());
        let is_sampled = match &parent {
            Some(parent) => parent.is_sampled(),
            None => self.ratio > 0.0 && rand::random::<f64>() < self.ratio,
        };
        if !is_sampled {
            return None;
        }
        if self.chosen.take().is_none() {
            self.metrics.skipped.inc();
            return None;
        }
        Some(Box::new(RequestSpan::start(&self.tracer, parent, request, protocol)))
    }

    /// Sends the last spans.
    pub(crate) async fn end(self: Arc<Self>) {
        let ended = tokio::task::spawn_blocking(move || self.provider.shutdown_with_timeout(LAST_SPANS));
        if let Ok(Err(error)) = ended.await {
            tracing::warn!(%error, "the last spans were not sent");
        }
    }
}
