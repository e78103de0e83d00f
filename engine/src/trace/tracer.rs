//! Chooses the requests that have a span.

use std::sync::Arc;
use std::time::Duration;

use http::{HeaderMap, Request};
use opentelemetry::KeyValue;
use opentelemetry::trace::{SpanContext, TracerProvider as _};
use opentelemetry_otlp::ExporterBuildError;
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::resource::EnvResourceDetector;
use opentelemetry_sdk::trace::{
    BatchConfigBuilder, BatchSpanProcessor, Sampler, SdkTracer, SdkTracerProvider,
};
use sluice_host::worker::try_thread;
use tokio::sync::oneshot;

use crate::per_second::PerSecond;
use crate::trace::context::parent;
use crate::trace::exporter::CountingExporter;
use crate::trace::metrics::SpanMetrics;
use crate::trace::options::TraceOptions;
use crate::trace::queue::BoundedQueue;
use crate::trace::span::RequestSpan;

/// Requests of traces that clients have begun, and requests that begin a trace, of which each second has spans.
const REQUESTS_PER_SECOND: u64 = 100;
/// Longest time that a span waits for others before it is sent.
const SEND_EVERY: Duration = Duration::from_secs(1);
/// Longest time that the last spans may take when the process ends.
const LAST_SPANS: Duration = Duration::from_secs(1);

/// Starts spans of requests, and sends them to a collector. It is not on the path of requests without a span.
#[derive(Debug)]
pub struct Tracer {
    provider: SdkTracerProvider,
    tracer: SdkTracer,
    ratio: f64,
    /// Apart from each other, so that clients do not displace what is sampled here.
    of_clients: PerSecond<REQUESTS_PER_SECOND>,
    own: PerSecond<REQUESTS_PER_SECOND>,
    metrics: SpanMetrics,
}

impl Tracer {
    /// Creates a tracer, with a thread of its own. Attributes of `OTEL_RESOURCE_ATTRIBUTES` describe the pod in every span.
    /// A variable of OpenTelemetry that is not supported leaves the program without spans, and running.
    #[must_use]
    pub fn start(options: &TraceOptions, metrics: SpanMetrics) -> Option<Arc<Self>> {
        // What sends the spans would panic without its thread.
        if let Err(error) = try_thread() {
            tracing::error!(%error, "no spans are sent");
            return None;
        }
        let failed = |error: &_| tracing::error!(%error, "no spans are sent: see the variables OTEL_EXPORTER_OTLP_...");
        Self::try_start(options, metrics).inspect_err(failed).ok()
    }

    fn try_start(
        TraceOptions { program, collector, ratio }: &TraceOptions,
        metrics: SpanMetrics,
    ) -> Result<Arc<Self>, ExporterBuildError> {
        let waiting = Arc::default();
        let exporter = CountingExporter::new(collector, metrics.clone(), Arc::clone(&waiting))?;
        let config = BatchConfigBuilder::default()
            .with_max_queue_size(BoundedQueue::CAPACITY)
            .with_scheduled_delay(SEND_EVERY)
            .build();
        let mut resource = Resource::builder_empty()
            .with_service_name(program.clone())
            .with_attribute(KeyValue::new("service.version", env!("CARGO_PKG_VERSION")))
            .with_detector(Box::new(EnvResourceDetector::new()));
        if let Ok(name) = std::env::var("OTEL_SERVICE_NAME") {
            resource = resource.with_service_name(name);
        }
        let resource = resource.build();
        let batches = BatchSpanProcessor::builder(exporter).with_batch_config(config).build();
        let provider = SdkTracerProvider::builder()
            .with_resource(resource)
            // Chosen here.
            .with_sampler(Sampler::AlwaysOn)
            .with_span_processor(BoundedQueue::new(batches, waiting, metrics.dropped.clone()))
            .build();
        let tracer = provider.tracer("sluice");
        tracing::info!(%collector, %ratio, "spans of sampled requests are sent");
        let (of_clients, own) = Default::default();
        Ok(Arc::new(Self { provider, tracer, ratio: ratio.get(), of_clients, own, metrics }))
    }

    /// Starts the span of a request that has just arrived, if its client has sampled the trace, or if it has none and is
    /// sampled here.
    pub fn span<B>(&self, request: &mut Request<B>) -> Option<Box<RequestSpan>> {
        let parent = self.choose(request.headers())?;
        Some(Box::new(RequestSpan::of_request(&self.tracer, parent, request)))
    }

    /// Starts the span of a call of a gRPC method, `SERVICE/METHOD`, as for a request.
    pub fn call(&self, headers: &HeaderMap, full_method: &'static str) -> Option<Box<RequestSpan>> {
        let parent = self.choose(headers)?;
        Some(Box::new(RequestSpan::of_call(&self.tracer, parent, full_method)))
    }

    /// Decides whether a request with these headers has a span, and returns the span of its client, if there is one.
    fn choose(&self, headers: &HeaderMap) -> Option<Option<SpanContext>> {
        let parent = parent(headers);
        let is_sampled = match &parent {
            Some(parent) => parent.is_sampled(),
            None => self.ratio > 0.0 && rand::random::<f64>() < self.ratio,
        };
        if !is_sampled {
            return None;
        }
        let chosen = if parent.is_some() { &self.of_clients } else { &self.own };
        if chosen.take().is_none() {
            self.metrics.requests_without.inc();
            return None;
        }
        Some(parent)
    }

    /// Sends the last spans.
    pub async fn end(&self) {
        let (provider, (ended, end)) = (self.provider.clone(), oneshot::channel());
        // A thread that nobody waits for: a resolver of names may hang.
        let _ = std::thread::Builder::new().spawn(move || {
            let _ = ended.send(provider.shutdown_with_timeout(LAST_SPANS));
        });
        if !matches!(tokio::time::timeout(LAST_SPANS, end).await, Ok(Ok(Ok(())))) {
            tracing::warn!("the last spans were not sent within {LAST_SPANS:?}");
        }
    }
}
