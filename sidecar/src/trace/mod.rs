//! Traces of requests. Spans go to an OpenTelemetry collector, if one is configured.
//!
//! - [`context`]: the trace that a request belongs to.
//! - [`tracer`]: which requests have a span; [`span`]: what it says.
//! - [`queue`]: the spans that wait for the collector.
//! - [`exporter`]: sends spans to the collector, and counts them; [`transport`]: HTTP.

mod context;
mod exporter;
mod queue;
mod span;
mod tracer;
mod transport;

pub(crate) use span::RequestSpan;
pub(crate) use tracer::Tracer;
