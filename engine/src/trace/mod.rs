//! Traces of requests. Spans go to an OpenTelemetry collector, if one is configured.
//!
//! - `options`: where spans are sent, and of how many requests.
//! - `context`: the trace that a request belongs to.
//! - `tracer`: which requests have a span; `span`: what it says.
//! - `queue`: the spans that wait for the collector.
//! - `exporter`: sends spans to the collector; `transport`: HTTP; `metrics`: how many.

mod context;
mod exporter;
mod metrics;
mod options;
mod queue;
mod span;
mod tracer;
mod transport;

pub use metrics::SpanMetrics;
pub use options::{TraceArgs, TraceOptions};
pub use span::RequestSpan;
pub use tracer::Tracer;
