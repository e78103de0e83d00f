//! A real OpenTelemetry collector, which prints the spans that it receives.

use std::collections::BTreeMap;

use serde_json::json;
use tempfile::TempDir;

use crate::client::get;
use crate::process::Process;
use crate::wait::until;

/// A span as the collector prints it.
#[derive(Debug, Default, Clone)]
pub struct Span {
    /// Its fields, such as `Trace ID` and `Kind`.
    fields: BTreeMap<String, String>,
    /// Its attributes, with their types: `Str(GET)`.
    pub attributes: BTreeMap<String, String>,
    /// The attributes of its resource.
    pub resource: BTreeMap<String, String>,
}

impl Span {
    /// Reads the spans of a collector's log.
    fn all(log: &str) -> Vec<Self> {
        let (mut spans, mut resource, mut in_resource) = (Vec::<Self>::new(), BTreeMap::new(), false);
        for line in log.lines().map(str::trim) {
            let attribute = line.strip_prefix("-> ").and_then(|rest| rest.split_once(": "));
            if line == "Resource attributes:" {
                (resource, in_resource) = (BTreeMap::new(), true);
            } else if line.starts_with("Span #") {
                in_resource = false;
                spans.push(Self { resource: resource.clone(), ..Self::default() });
            } else if let Some((name, value)) = attribute {
                let to = match spans.last_mut() {
                    Some(span) if !in_resource => &mut span.attributes,
                    _ => &mut resource,
                };
                to.insert(name.to_owned(), value.to_owned());
            } else if let (Some(span), Some((name, value))) = (spans.last_mut(), line.split_once(':'))
                && !in_resource
            {
                span.fields.insert(name.trim().to_owned(), value.trim().to_owned());
            }
        }
        spans
    }

    /// Returns a field; empty without it.
    #[must_use]
    pub fn field(&self, name: &str) -> &str {
        self.fields.get(name).map_or("", String::as_str)
    }

    /// Returns an attribute with its type: `Str(GET)`.
    #[must_use]
    pub fn attribute(&self, name: &str) -> Option<&str> {
        self.attributes.get(name).map(String::as_str)
    }
}

/// A collector as a process.
#[derive(Debug)]
pub struct Collector {
    process: Process,
    _folder: TempDir,
}

impl Collector {
    /// Starts a collector that listens on a port for OTLP over HTTP; `None` without the variable `SLUICE_OTELCOL`, its path, which
    /// tests/node/otelcol.sh prints.
    pub async fn start(port: u16) -> Option<Self> {
        let Some(program) = std::env::var_os("SLUICE_OTELCOL").filter(|path| !path.is_empty()) else {
            println!("skipped: SLUICE_OTELCOL is not set");
            return None;
        };
        let endpoint = format!("127.0.0.1:{port}");
        let config = json!({
            "receivers": {"otlp": {"protocols": {"http": {"endpoint": endpoint}}}},
            "exporters": {"debug": {"verbosity": "detailed"}},
            "service": {
                "pipelines": {"traces": {"receivers": ["otlp"], "exporters": ["debug"]}},
                "telemetry": {"metrics": {"level": "none"}},
            },
        });
        let folder = tempfile::tempdir().ok()?;
        let log = folder.path().join("collector.log");
        let process =
            Process::start(program.as_ref(), &[format!("--config=yaml:{config}")], &[], &log, "KILL");
        until("the collector listens", async || {
            (get(&endpoint, "/v1/traces", &[]).await.status == 405).then_some(())
        })
        .await;
        Some(Self { process, _folder: folder })
    }

    /// Returns everything that it has printed.
    #[must_use]
    pub fn log(&self) -> String {
        self.process.output()
    }

    /// Returns the spans of all traces.
    #[must_use]
    pub fn spans(&self) -> Vec<Span> {
        Span::all(&self.log())
    }

    /// Returns the spans of a trace.
    #[must_use]
    pub fn spans_of(&self, trace: &str) -> Vec<Span> {
        self.spans().into_iter().filter(|span| span.field("Trace ID") == trace).collect()
    }
}
