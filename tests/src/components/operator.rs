//! The operator as a process that serves a control plane of the tests.

use std::path::{Path, PathBuf};

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, PostParams};
use serde_json::json;
use tempfile::TempDir;

use crate::kubernetes::control_plane::ControlPlane;
use crate::process::{Process, binary, free_port};
use crate::wait::until;

/// A running operator.
#[derive(Debug)]
pub struct Operator {
    /// The process.
    pub process: Process,
    /// Control URL for sidecars: `https://127.0.0.1:PORT`.
    pub control_url: String,
    /// URL of the probes and metrics: `http://127.0.0.1:PORT`.
    pub admin_url: String,
    /// URL of the admission webhook: `https://127.0.0.1:PORT`.
    pub webhook_url: String,
    ca_file: PathBuf,
    /// Keeps the file of the log.
    _directory: TempDir,
}

impl Operator {
    /// Starts an operator in a namespace of its own with the given store, and waits until it leads.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(plane: &ControlPlane, namespace: &str, store_url: &str) -> Self {
        let control_url = format!("https://127.0.0.1:{}", free_port());
        Self::start_with(plane, namespace, store_url, &control_url, &[]).await
    }

    /// Starts an operator with a given control URL and further arguments, and waits until it leads.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_with(
        plane: &ControlPlane,
        namespace: &str,
        store_url: &str,
        control_url: &str,
        more_arguments: &[&str],
    ) -> Self {
        let mut this = Self::begin(plane, namespace, store_url, control_url, more_arguments).await;
        this.lead(plane, namespace).await;
        this
    }

    /// Starts an operator, which may wait for another one to end.
    pub async fn begin(
        plane: &ControlPlane,
        namespace: &str,
        store_url: &str,
        control_url: &str,
        more_arguments: &[&str],
    ) -> Self {
        let directory = tempfile::tempdir().expect("a temporary directory");
        let control: u16 = control_url.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let ports = [control, free_port(), free_port()];
        let (mut arguments, kubeconfig) = Self::arguments(plane, namespace, store_url, ports).await;
        if !more_arguments.iter().any(|argument| argument.starts_with("--log=")) {
            arguments.push("--log=info,sluice_operator=debug".to_owned());
        }
        arguments.extend(more_arguments.iter().map(|&argument| argument.to_owned()));
        let log = directory.path().join("operator.log");
        let process = Process::start(&binary("sluice-operator"), &arguments, &[kubeconfig], &log, "TERM");
        let [_, webhook, admin] = ports;
        Self {
            process,
            control_url: format!("https://127.0.0.1:{control}"),
            admin_url: format!("http://127.0.0.1:{admin}"),
            webhook_url: format!("https://127.0.0.1:{webhook}"),
            ca_file: plane.directory().join(format!("{namespace}.crt")),
            _directory: directory,
        }
    }

    /// Creates the namespace of an operator. Returns its arguments, with the ports for sidecars, for the webhook and for probes, and a
    /// variable of its environment.
    pub async fn arguments(
        plane: &ControlPlane,
        namespace: &str,
        store_url: &str,
        [control, webhook, admin]: [u16; 3],
    ) -> (Vec<String>, (&'static str, String)) {
        let client = plane.client().await;
        let object = serde_json::from_value(json!({"metadata": {"name": namespace}})).expect("a namespace");
        // An operator that starts again finds its namespace.
        let _ = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &object).await;
        let arguments = vec![
            format!("--namespace={namespace}"),
            format!("--webhook-listen=127.0.0.1:{webhook}"),
            format!("--control-listen=127.0.0.1:{control}"),
            format!("--admin-listen=127.0.0.1:{admin}"),
            "--certificate-name=127.0.0.1".to_owned(),
            // The API server rejects loopback addresses in an EndpointSlice. The tests do not use this one.
            "--pod-ip=192.0.2.1".to_owned(),
            format!("--store-url={store_url}"),
            "--store-latency-budget-ms=2000".to_owned(),
        ];
        (arguments, ("KUBECONFIG", plane.kubeconfig().display().to_string()))
    }

    /// Waits until it leads, and reads its certificate.
    ///
    /// # Panics
    /// When it ends before.
    pub async fn lead(&mut self, plane: &ControlPlane, namespace: &str) {
        let control = self.control_url.trim_start_matches("https://").to_owned();
        until("the operator leads", async || {
            assert!(self.process.is_running(), "the operator has ended:\n{}", self.process.output());
            tokio::net::TcpStream::connect(&control).await.ok()
        })
        .await;
        let secrets: Api<Secret> = Api::namespaced(plane.client().await, namespace);
        let secret = secrets.get("sluice-certificates").await.expect("the operator created its certificates");
        let ca = secret.data.and_then(|mut data| data.remove("ca.crt")).expect("a CA certificate").0;
        std::fs::write(self.ca_file(), ca).expect("the directory is writable");
    }

    /// Returns the file with the operator's CA certificate.
    #[must_use]
    pub fn ca_file(&self) -> &Path {
        &self.ca_file
    }
}
