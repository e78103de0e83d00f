//! A real API server with etcd, one a test binary, on loopback: what the ecosystem calls envtest. No kubelet, no
//! controllers. `KUBEBUILDER_ASSETS` says where the binaries are; without it `tests/node/assets.sh` builds them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kube::config::{KubeConfigOptions, Kubeconfig};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::process::{Process, free_port};
use crate::wait::until;

/// A running control plane.
#[derive(Debug)]
pub struct ControlPlane {
    _etcd: Process,
    api_server: Process,
    folder: TempDir,
}

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();

impl ControlPlane {
    /// The test binary's own; the first who asks starts it, with the CRDs.
    pub async fn shared() -> &'static Self {
        SHARED.get_or_init(Self::start).await
    }

    /// A client with all rights.
    ///
    /// # Panics
    /// When the kubeconfig is not good.
    pub async fn client(&self) -> kube::Client {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig()).expect("the kubeconfig that was written");
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        kube::Client::try_from(config.expect("the kubeconfig is good")).expect("a client")
    }

    /// The path of its kubeconfig.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.folder.path().join("kubeconfig")
    }

    /// A folder that lives as long as it does.
    #[must_use]
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    async fn start() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let assets = assets();
        let folder = tempfile::tempdir().expect("a temporary folder");
        let path = |name: &str| folder.path().join(name);
        let text = |name: &str| path(name).display().to_string();
        write_certificates(folder.path());
        std::fs::write(path("tokens.csv"), "admin-token,admin,admin,system:masters\n")
            .expect("the folder can be written");

        let (client_port, peer_port, port) = (free_port(), free_port(), free_port());
        let etcd_url = format!("http://127.0.0.1:{client_port}");
        let peer_url = format!("http://127.0.0.1:{peer_port}");
        let arguments = [
            format!("--data-dir={}", text("etcd")),
            format!("--listen-client-urls={etcd_url}"),
            format!("--advertise-client-urls={etcd_url}"),
            format!("--listen-peer-urls={peer_url}"),
            format!("--initial-advertise-peer-urls={peer_url}"),
            format!("--initial-cluster=default={peer_url}"),
            "--unsafe-no-fsync".to_owned(),
        ];
        let etcd = Process::start(&assets.join("etcd"), &arguments, &[], &path("etcd.log"), "KILL");
        until("etcd listens", async || tokio::net::TcpStream::connect(("127.0.0.1", client_port)).await.ok())
            .await;
        let arguments = [
            format!("--etcd-servers={etcd_url}"),
            format!("--secure-port={port}"),
            "--bind-address=127.0.0.1".to_owned(),
            format!("--tls-cert-file={}", text("tls.crt")),
            format!("--tls-private-key-file={}", text("tls.key")),
            format!("--cert-dir={}", text("certs")),
            format!("--token-auth-file={}", text("tokens.csv")),
            "--service-cluster-ip-range=10.96.0.0/24".to_owned(),
            "--authorization-mode=RBAC".to_owned(),
            "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
            format!("--service-account-key-file={}", text("tls.crt")),
            format!("--service-account-signing-key-file={}", text("tls.key")),
            "--disable-admission-plugins=ServiceAccount".to_owned(),
            "--endpoint-reconciler-type=none".to_owned(),
        ];
        let api_server =
            Process::start(&assets.join("kube-apiserver"), &arguments, &[], &path("apiserver.log"), "KILL");
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("https://127.0.0.1:{port}"), "certificate-authority": text("tls.crt")}}],
            "users": [{"name": "test", "user": {"token": "admin-token"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        std::fs::write(path("kubeconfig"), kubeconfig.to_string()).expect("the folder can be written");
        let plane = Self { _etcd: etcd, api_server, folder };
        let client = plane.client().await;
        let mut plane = plane;
        until("the API server is ready", async || {
            assert!(plane.api_server.runs(), "the API server has ended:\n{}", plane.api_server.output());
            client
                .request_text(http::Request::get("/readyz").body(Vec::new()).ok()?)
                .await
                .ok()
                .filter(|text| text == "ok")
        })
        .await;
        crate::cluster::install_crds(&client).await;
        plane
    }
}

fn assets() -> PathBuf {
    if let Some(folder) = std::env::var_os("KUBEBUILDER_ASSETS") {
        return folder.into();
    }
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("node/assets.sh");
    let output = Command::new(&script).arg("apiserver").stderr(Stdio::inherit()).output();
    let output = output.unwrap_or_else(|error| panic!("{} cannot be run: {error}", script.display()));
    assert!(output.status.success(), "{} failed: `make test` says what is missing", script.display());
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

/// One self-signed certificate; its key signs service-account tokens too.
fn write_certificates(folder: &Path) {
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let certified = rcgen::generate_simple_self_signed(names).expect("a certificate");
    std::fs::write(folder.join("tls.crt"), certified.cert.pem()).expect("the folder can be written");
    std::fs::write(folder.join("tls.key"), certified.signing_key.serialize_pem())
        .expect("the folder can be written");
}
