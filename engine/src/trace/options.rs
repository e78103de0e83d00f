//! Where spans are sent, and of how many requests.

use sluice_config::trace_options::{CollectorUrl, SampleRatio};

/// The arguments of tracing.
#[derive(Debug, Clone, clap::Args)]
pub struct TraceArgs {
    /// OpenTelemetry collector that receives a span of each sampled request, in OTLP over HTTP, such as
    /// http://otel-collector.observability:4318. Without it there are no spans
    #[arg(long, env = "SLUICE_TRACE_COLLECTOR", value_name = "URL")]
    pub trace_collector: Option<CollectorUrl>,
    /// Part of the requests without a trace that begin one, from 0 to 1. Requests with a trace are sampled as their client says
    #[arg(long, env = "SLUICE_TRACE_RATIO", value_name = "RATIO", default_value = "0")]
    pub trace_ratio: SampleRatio,
}

/// The options of tracing.
#[derive(Debug, Clone)]
pub struct TraceOptions {
    /// The name of the program in spans, unless `OTEL_SERVICE_NAME` names another.
    pub program: String,
    /// Where spans are sent.
    pub collector: CollectorUrl,
    /// The part of requests without a trace that begin one.
    pub ratio: SampleRatio,
}

impl TraceArgs {
    /// Returns the options of a program, if its spans are sent anywhere.
    #[must_use]
    pub fn options(self, program: &str) -> Option<TraceOptions> {
        let Self { trace_collector, trace_ratio: ratio } = self;
        if trace_collector.is_none() && ratio != SampleRatio::default() {
            tracing::warn!("--trace-ratio has no effect without --trace-collector");
        }
        let program = program.to_owned();
        trace_collector.map(|collector| TraceOptions { program, collector, ratio })
    }
}
