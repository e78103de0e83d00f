//! The sidecar as a process, before a small upstream, with the token of a pod.

use std::path::PathBuf;

use k8s_openapi::api::core::v1::Pod;
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;

use crate::cluster::TestNamespace;
use crate::load::get;
use crate::operator::Operator;
use crate::process::{Process, binary, free_port};
use crate::wait::until;

/// A running sidecar.
#[derive(Debug)]
pub struct Sidecar {
    /// The process.
    pub process: Process,
    /// Where requests go.
    pub address: String,
    /// Where probes go.
    pub admin: String,
    arguments: Vec<String>,
    folder: TempDir,
}

impl Sidecar {
    /// Starts one for a pod, and waits until it has its first snapshot.
    ///
    /// # Panics
    /// When it does not start.
    pub async fn start(namespace: &TestNamespace, pod: &Pod, operator: &Operator) -> Self {
        let folder = tempfile::tempdir().expect("a temporary folder");
        let token = folder.path().join("token");
        std::fs::write(&token, namespace.token(pod, "sluice.dev").await).expect("the folder can be written");
        let (port, admin) = (free_port(), free_port());
        let arguments = vec![
            format!("--proxy=127.0.0.1:{port}={}", upstream().await),
            format!("--admin=127.0.0.1:{admin}"),
            format!("--operator={}", operator.control),
            format!("--ca-file={}", operator.authority().display()),
            format!("--token-file={}", token.display()),
            format!("--state-dir={}", folder.path().display()),
            "--drain-delay=0s".to_owned(),
        ];
        let process = Self::spawn(&arguments, folder.path().join("sidecar.log"));
        let mut this = Self {
            process,
            address: format!("127.0.0.1:{port}"),
            admin: format!("127.0.0.1:{admin}"),
            arguments,
            folder,
        };
        this.started().await;
        this
    }

    /// Ends it by SIGKILL and starts it again with what it had kept.
    pub async fn restart(&mut self) {
        self.process.stop();
        self.process = Self::spawn(&self.arguments, self.folder.path().join("sidecar.log"));
        self.started().await;
    }

    fn spawn(arguments: &[String], log: PathBuf) -> Process {
        Process::start(&binary("sluice-sidecar"), arguments, &[], &log, "KILL")
    }

    async fn started(&mut self) {
        until("the sidecar has started", async || {
            assert!(self.process.runs(), "the sidecar has ended:\n{}", self.process.output());
            (get(&self.admin, "/startupz", &[]).await.status == 200).then_some(())
        })
        .await;
    }
}

/// An upstream that answers 200 to everything, for as long as the test's runtime lives.
async fn upstream() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let address = listener.local_addr().expect("an address").to_string();
    tokio::spawn(async move {
        while let Ok((mut tcp, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut buffer = [0; 4096];
                while tcp.read(&mut buffer).await.is_ok_and(|n| n > 0) {
                    if tcp.write_all(b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\nok").await.is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}
