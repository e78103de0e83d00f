//! An OpenTelemetry collector: a real one, which prints the spans that it receives, or a receiver in this process.

use std::collections::BTreeMap;

use serde_json::json;
use tempfile::TempDir;

use crate::client::get;
use crate::collector::receiver::Receiver;
use crate::process::Process;
use crate::wait::until;

mod receiver;

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
