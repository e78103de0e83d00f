//! An OpenTelemetry collector: a real one, which prints the spans that it receives, or a receiver in this process.

use serde_json::json;
use tempfile::TempDir;

use crate::client::get;
use crate::collector::receiver::Receiver;
use crate::process::Process;
use crate::wait::until;

mod receiver;
mod span;

pub use span::Span;

/// A collector.
#[derive(Debug)]
pub struct Collector(Kind);

#[derive(Debug)]
enum Kind {
    Program { process: Process, _folder: TempDir },
    Receiver(Receiver),
}

impl Collector {
    /// Starts a collector that listens on a port for OTLP over HTTP: the program that the variable `SLUICE_OTELCOL` names, whose
    /// path tests/node/otelcol.sh prints, or a receiver in this process.
    pub async fn start(port: u16) -> Self {
        let endpoint = format!("127.0.0.1:{port}");
        let Some(program) = std::env::var_os("SLUICE_OTELCOL").filter(|path| !path.is_empty()) else {
            return Self(Kind::Receiver(Receiver::start(&endpoint).await));
        };
        let config = json!({
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": endpoint}}}},
            "exporters": {"debug": {"verbosity": "detailed"}},
            "service": {
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["debug"]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        });
        let folder = tempfile::tempdir().unwrap();
        let log = folder.path().join("collector.log");
        let process =
            Process::start(program.as_ref(), &[format!("--config=yaml:{config}")], &[], &log, "KILL");
        until("the collector listens", async || {
            (get(&endpoint, "/v1/traces", &[]).await.status == 405).then_some(())
        })
        .await;
        Self(Kind::Program { process, _folder: folder })
    }

    /// Returns everything that it has received, as text.
    #[must_use]
    pub fn log(&self) -> String {
        match &self.0 {
            Kind::Program { process, .. } => process.output(),
            Kind::Receiver(receiver) => format!("{:?}", receiver.spans()),
        }
    }

    /// Returns the spans of all traces.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        match &self.0 {
            Kind::Program { process, .. } => Span::all(&process.output()),
            Kind::Receiver(receiver) => receiver.spans(),
        }
    }

    /// Returns the spans of a trace.
    #[must_use]
    pub fn spans_of(&self, trace: &str) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.field("Trace ID") == trace).collect()
    }
}
