//! A Prometheus server on loopback.

use serde_json::{Value, json};
use tempfile::TempDir;

use crate::client;
use crate::process::{Process, free_port};
use crate::wait::until;

/// A running Prometheus, which scrapes its targets every second.
#[derive(Debug)]
pub struct Prometheus {
    process: Process,
    address: String,
    _directory: TempDir,
}

impl Prometheus {
    /// Starts a server with these `scrape_configs` and waits until it is ready. Dropping it kills it.
    ///
    /// # Panics
    /// When prometheus is not installed.
    pub async fn start(scrape_configs: Value) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let file = directory.path().join("prometheus.yml");
        let global = json!({"scrape_interval": "1s", "scrape_timeout": "1s"});
        let config = json!({"global": global, "scrape_configs": scrape_configs});
        std::fs::write(&file, config.to_string()).expect("the directory is writable");
        let address = format!("127.0.0.1:{}", free_port());
        let arguments = [
            format!("--config.file={}", file.display()),
            format!("--storage.tsdb.path={}", directory.path().join("data").display()),
            format!("--web.listen-address={address}"),
        ];
        let log = directory.path().join("prometheus.log");
        let process =
            Process::start(std::path::Path::new("/usr/bin/prometheus"), &arguments, &[], &log, "KILL");
        let mut this = Self { process, address, _directory: directory };
        until("Prometheus is ready", async || {
            assert!(this.process.is_running(), "Prometheus has ended:\n{}", this.process.output());
            (client::get(&this.address, "/-/ready", &[]).await.status == 200).then_some(())
        })
        .await;
        this
    }

    /// Evaluates a query now, and returns the samples that are numbers: the labels of each, and its value.
    ///
    /// # Panics
    /// When the query is not valid.
    pub async fn query(&self, expression: &str) -> Vec<(Value, f64)> {
        let response = self.api(&format!("query?query={}", percent_encoded(expression))).await;
        let samples = response["result"].as_array().cloned().unwrap_or_default();
        let number = |sample: &Value| sample["value"][1].as_str()?.parse::<f64>().ok();
        let samples =
            samples.into_iter().filter_map(|sample| Some((sample["metric"].clone(), number(&sample)?)));
        samples.filter(|(_, value)| !value.is_nan()).collect()
    }

    /// Returns all values of a label; `__name__` is the name of the metric.
    ///
    /// # Panics
    /// When Prometheus does not answer.
    pub async fn label_values(&self, label: &str) -> Vec<String> {
        serde_json::from_value(self.api(&format!("label/{label}/values")).await).expect("a list of texts")
    }

    async fn api(&self, path: &str) -> Value {
        // HTTP/1.0 has no chunks.
        let request = format!("GET /api/v1/{path} HTTP/1.0\r\n\r\n");
        let response = client::send(&self.address, request.as_bytes()).await;
        assert_eq!(response.status, 200, "{path}: {}", response.body);
        let mut body: Value = serde_json::from_str(&response.body).expect("JSON");
        body["data"].take()
    }
}

fn percent_encoded(text: &str) -> String {
    text.bytes()
        .map(
            |byte| {
                if byte.is_ascii_alphanumeric() {
                    char::from(byte).to_string()
                } else {
                    format!("%{byte:02X}")
                }
            },
        )
        .collect()
}
