//! A real API server with etcd on loopback, as in controller-runtime's envtest: no kubelet and no
//! controllers. `KUBEBUILDER_ASSETS` names the directory of the binaries. If it is not set,
//! `tests/node/assets.sh` builds them.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use kube::config::{KubeConfigOptions, Kubeconfig};
use tempfile::TempDir;
use tokio::sync::OnceCell;

use crate::kubernetes::namespace::install_crds;
use crate::process::{Process, free_port};
use crate::wait::until;

/// A running API server with its etcd.
#[derive(Debug)]
pub struct ControlPlane {
    _etcd: Process,
    api_server: Process,
    api_server_arguments: Vec<String>,
    directory: TempDir,
}

static SHARED: OnceCell<ControlPlane> = OnceCell::const_new();

impl ControlPlane {
    /// Returns the control plane of this test binary. The first call starts it and installs the CRDs.
    pub async fn shared() -> &'static Self {
        SHARED.get_or_init(Self::start).await
    }

    /// Creates a client with cluster-admin rights.
    ///
    /// # Panics
    /// When the kubeconfig cannot be read.
    pub async fn client(&self) -> kube::Client {
        let kubeconfig = Kubeconfig::read_from(self.kubeconfig()).expect("the kubeconfig is readable");
        let config = kube::Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        kube::Client::try_from(config.expect("the kubeconfig is valid")).expect("a client")
    }

    /// Returns the path of a kubeconfig with cluster-admin rights.
    #[must_use]
    pub fn kubeconfig(&self) -> PathBuf {
        self.directory.path().join("kubeconfig")
    }

    /// Returns a command that calls kubectl with cluster-admin rights.
    #[must_use]
    pub fn kubectl(&self) -> Command {
        let mut command = Command::new(assets().join("kubectl"));
        command.arg("--kubeconfig").arg(self.kubeconfig());
        command
    }

    /// Returns the path of Helm, and builds it if necessary. `SLUICE_HELM` chooses its version.
    ///
    /// # Panics
    /// When it cannot be built.
    #[must_use]
    pub fn helm(&self) -> PathBuf {
        build("helm", None).join("helm")
    }

    /// Returns the path of Helm `3` or `4`, as [`Self::helm`] does.
    ///
    /// # Panics
    /// When it cannot be built.
    #[must_use]
    pub fn helm_of(&self, major: &str) -> PathBuf {
        build("helm", Some(major)).join("helm")
    }

    /// Runs a command of a status message as it stands in a shell, with cluster-admin rights.
    ///
    /// # Panics
    ///
    /// If the command fails.
    pub fn type_in_shell(&self, command: &str) {
        let path = std::env::var("PATH").unwrap_or_default();
        let mut shell = Command::new("bash");
        shell.args(["-c", command]).env("KUBECONFIG", self.kubeconfig());
        shell.env("PATH", format!("{}:{path}", assets().display()));
        let output = shell.output().expect("a shell");
        assert!(output.status.success(), "{command}: {output:?}");
    }

    /// Returns a directory that exists as long as the control plane.
    #[must_use]
    pub fn directory(&self) -> &Path {
        self.directory.path()
    }

    /// Starts a control plane and installs the CRDs. A test that counts requests, or stops operators, has one of its own.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start() -> Self {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let assets = assets();
        let directory = tempfile::tempdir().expect("a temporary directory");
        let path = |name: &str| directory.path().join(name);
        let text = |name: &str| path(name).display().to_string();
        write_certificates(directory.path());
        std::fs::write(path("tokens.csv"), "admin-token,admin,admin,system:masters\n")
            .expect("the directory is writable");

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
        // A control plane that is shared is never dropped, and these are 130 MiB.
        let remove = [("GUARD_REMOVES", text("etcd"))];
        let etcd = Process::start(&assets.join("etcd"), &arguments, &remove, &path("etcd.log"), "KILL");
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
        let api_server = start_api_server(directory.path(), &arguments);
        let kubeconfig = serde_json::json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "test",
            "clusters": [{"name": "test", "cluster": {"server": format!("https://127.0.0.1:{port}"), "certificate-authority": text("tls.crt")}}],
            "users": [{"name": "test", "user": {"token": "admin-token"}}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        });
        std::fs::write(path("kubeconfig"), kubeconfig.to_string()).expect("the directory is writable");
        let mut plane = Self { _etcd: etcd, api_server, api_server_arguments: arguments.into(), directory };
        plane.ready().await;
        install_crds(&plane.client().await).await;
        plane
    }

    /// Kills the API server and starts it again with the same data.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn restart_api_server(&mut self) {
        self.api_server.kill();
        self.api_server = start_api_server(self.directory.path(), &self.api_server_arguments);
        self.ready().await;
    }

    async fn ready(&mut self) {
        let client = self.client().await;
        until("the API server is ready", async || {
            assert!(self.api_server.is_running(), "the API server has ended:\n{}", self.api_server.output());
            client
                .request_text(http::Request::get("/readyz").body(Vec::new()).ok()?)
                .await
                .ok()
                .filter(|text| text == "ok")
        })
        .await;
    }
}

fn start_api_server(directory: &Path, arguments: &[String]) -> Process {
    let log = directory.join("apiserver.log");
    Process::start(&assets().join("kube-apiserver"), arguments, &[], &log, "KILL")
}

/// Returns the directory of the Kubernetes binaries, and builds them if necessary.
fn assets() -> PathBuf {
    std::env::var_os("KUBEBUILDER_ASSETS").map_or_else(|| build("apiserver", None), PathBuf::from)
}

/// Builds a part of `tests/node/assets.sh` unless it is there, and returns the directory.
fn build(part: &str, helm: Option<&str>) -> PathBuf {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("node/assets.sh");
    let mut command = Command::new(&script);
    command.arg(part).envs(helm.map(|helm| ("SLUICE_HELM", helm)));
    let output = command.stderr(Stdio::inherit()).output();
    let output = output.unwrap_or_else(|error| panic!("{} cannot be run: {error}", script.display()));
    assert!(
        output.status.success(),
        "{} failed: run `make test`, which installs what it needs",
        script.display()
    );
    PathBuf::from(String::from_utf8_lossy(&output.stdout).trim())
}

/// Writes a self-signed certificate. Its key also signs service-account tokens.
fn write_certificates(directory: &Path) {
    let names = vec!["127.0.0.1".to_owned(), "localhost".to_owned()];
    let certified = rcgen::generate_simple_self_signed(names).expect("a certificate");
    std::fs::write(directory.join("tls.crt"), certified.cert.pem()).expect("the directory is writable");
    std::fs::write(directory.join("tls.key"), certified.signing_key.serialize_pem())
        .expect("the directory is writable");
}
