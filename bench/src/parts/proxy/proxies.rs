//! The proxies in front of the upstream: the sidecar as `sluice run` with the memory store, and nginx with
//! `limit_req`. Each has one worker, and the limits in `bench/peers/`.

use std::net::SocketAddr;

use anyhow::Context as _;
use sluice_tests::process::{Process, binary, free_port};
use sluice_tests::wait::until;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::support::cores::Cores;
use crate::support::paths::{peer_file, program};
use crate::support::procfs::Processes;

/// Path with a limit that is never reached.
pub(super) const ADMIT: &str = "/admit/";
/// Path where only the first request of a client is admitted.
pub(super) const DENY: &str = "/deny/";

/// A running proxy.
pub(super) struct Proxy {
    pub(super) address: SocketAddr,
    pub(super) processes: Processes,
    _process: Process,
    _folder: TempDir,
}

impl Proxy {
    /// Starts the sidecar.
    pub(super) async fn start_sluice(cores: Cores, upstream: SocketAddr) -> anyhow::Result<Self> {
        let policies = std::fs::read_to_string(peer_file("sluice.yaml"))?;
        Self::start_sluice_with(cores, upstream, &policies).await
    }

    /// Starts the sidecar with these policies.
    pub(super) async fn start_sluice_with(
        cores: Cores,
        upstream: SocketAddr,
        policies: &str,
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("policies.yaml");
        std::fs::write(&file, policies)?;
        let address = free_address();
        let arguments = [
            "run".to_owned(),
            format!("--policy={}", file.display()),
            format!("--upstream=http://{upstream}"),
            format!("--listen={address}"),
            format!("--admin={}", free_address()),
            "--store=memory".to_owned(),
            "--workers=1".to_owned(),
        ];
        let process = cores.start(&binary("sluice"), &arguments, &folder.path().join("log"), "KILL")?;
        Self::wait_until_it_listens(address, "sluice", process, folder).await
    }

    /// Starts nginx.
    pub(super) async fn start_nginx(cores: Cores, upstream: SocketAddr) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let address = free_address();
        let template = std::fs::read_to_string(peer_file("nginx.conf"))?;
        let text =
            template.replace("@LISTEN@", &address.to_string()).replace("@UPSTREAM@", &upstream.to_string());
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, text)?;
        let arguments =
            ["-p", &folder.path().display().to_string(), "-e", "stderr", "-c", &file.display().to_string()]
                .map(str::to_owned);
        // TERM lets the master end its worker.
        let process = cores.start(&program("nginx")?, &arguments, &folder.path().join("log"), "TERM")?;
        Self::wait_until_it_listens(address, "nginx", process, folder).await
    }

    async fn wait_until_it_listens(
        address: SocketAddr,
        name: &str,
        mut process: Process,
        folder: TempDir,
    ) -> anyhow::Result<Self> {
        until("the proxy listens", async || {
            assert!(process.is_running(), "{name} has exited: {}", process.output());
            TcpStream::connect(address).await.ok()
        })
        .await;
        let processes = Processes::started(name).with_context(|| process.output())?;
        Ok(Self { address, processes, _process: process, _folder: folder })
    }
}

fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}
