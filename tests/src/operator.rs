//! The operator as a process, on a control plane.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::{Namespace, Secret};
use kube::api::{Api, PostParams};
use serde_json::json;
use tempfile::TempDir;

use crate::control_plane::ControlPlane;
use crate::process::{Process, binary, free_port};
use crate::wait::until;

/// A running operator.
#[derive(Debug)]
pub struct Operator {
    /// The process.
    pub process: Process,
    /// `https://127.0.0.1:PORT`, for sidecars.
    pub control: String,
    /// `http://127.0.0.1:PORT`, for probes.
    pub admin: String,
    authority: PathBuf,
    _folder: TempDir,
}

impl Operator {
    /// Starts one in a namespace of its own, with the given store, and waits until it leads.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(plane: &ControlPlane, namespace: &str, store: &str) -> Self {
        Self::start_at(plane, namespace, store, &format!("https://127.0.0.1:{}", free_port())).await
    }

    /// Starts one whose control port is at a given place.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_at(plane: &ControlPlane, namespace: &str, store: &str, control: &str) -> Self {
        Self::start_with(plane, namespace, store, control, &[]).await
    }

    /// Starts one with further arguments.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start_with(
        plane: &ControlPlane,
        namespace: &str,
        store: &str,
        control: &str,
        more: &[&str],
    ) -> Self {
        let control: u16 = control.rsplit(':').next().and_then(|port| port.parse().ok()).expect("a port");
        let client = plane.client().await;
        let made = serde_json::from_value(json!({"metadata": {"name": namespace}})).expect("a namespace");
        let _ = Api::<Namespace>::all(client.clone()).create(&PostParams::default(), &made).await;
        let folder = tempfile::tempdir().expect("a temporary folder");
        let [webhook, admin] = [free_port(), free_port()];
        let mut arguments = vec![
            format!("--namespace={namespace}"),
            format!("--webhook-listen=127.0.0.1:{webhook}"),
            format!("--control-listen=127.0.0.1:{control}"),
            format!("--admin-listen=127.0.0.1:{admin}"),
            "--certificate-name=127.0.0.1".to_owned(),
            // An EndpointSlice may not name loopback; nobody follows this one.
            "--pod-ip=192.0.2.1".to_owned(),
            format!("--store-url={store}"),
            "--store-latency-budget-ms=2000".to_owned(),
            "--log=info,sluice_operator=debug".to_owned(),
        ];
        arguments.extend(more.iter().map(|&argument| argument.to_owned()));
        let kubeconfig = ("KUBECONFIG", plane.kubeconfig().display().to_string());
        let log = folder.path().join("operator.log");
        let process = Process::start(&binary("sluice-operator"), &arguments, &[kubeconfig], &log, "TERM");
        let mut this = Self {
            process,
            control: format!("https://127.0.0.1:{control}"),
            admin: format!("http://127.0.0.1:{admin}"),
            authority: plane.folder().join(format!("{namespace}.crt")),
            _folder: folder,
        };
        until("the operator leads", async || {
            assert!(this.process.runs(), "the operator has ended:\n{}", this.process.output());
            tokio::net::TcpStream::connect(("127.0.0.1", control)).await.ok()
        })
        .await;
        let secrets: Api<Secret> = Api::namespaced(client, namespace);
        let secret = secrets.get("sluice-certificates").await.expect("the operator made its certificates");
        let authority = secret.data.and_then(|mut data| data.remove("ca.crt")).expect("an authority").0;
        std::fs::write(this.authority(), authority).expect("the folder can be written");
        this
    }

    /// The file of its authority.
    #[must_use]
    pub fn authority(&self) -> PathBuf {
        self.authority.clone()
    }
}
