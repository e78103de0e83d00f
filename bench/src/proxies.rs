//! What stands before the upstream: the sidecar as `sluice run` with the memory store, or nginx with `limit_req`; one
//! worker each, with the limits in `peers/`.

use std::net::SocketAddr;

use anyhow::Context as _;
use sluice_tests::process::{Process, binary, free_port};
use sluice_tests::wait::until;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::cores::Cores;
use crate::procfs::Processes;

/// Where more is admitted than anybody sends.
pub(crate) const ADMIT: &str = "/admit/";
/// Where the first request of a client is admitted.
pub(crate) const DENY: &str = "/deny/";

/// A proxy that runs.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) processes: Processes,
    _process: Process,
    _folder: TempDir,
}

impl Proxy {
    /// The sidecar.
    pub(crate) async fn sluice(cores: Cores, upstream: SocketAddr) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let address = free_address();
        let arguments = [
            "run".to_owned(),
            format!("--policy={}", crate::peer_file("sluice.yaml").display()),
            format!("--upstream=http://{upstream}"),
            format!("--listen={address}"),
            format!("--admin={}", free_address()),
            "--store=memory".to_owned(),
            "--workers=1".to_owned(),
        ];
        let process = cores.start(&binary("sluice"), &arguments, &folder.path().join("log"), "KILL")?;
        Self::started(address, "sluice", process, folder).await
    }

    /// nginx.
    pub(crate) async fn nginx(cores: Cores, upstream: SocketAddr) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let address = free_address();
        let template = std::fs::read_to_string(crate::peer_file("nginx.conf"))?;
        let text =
            template.replace("@LISTEN@", &address.to_string()).replace("@UPSTREAM@", &upstream.to_string());
        let file = folder.path().join("nginx.conf");
        std::fs::write(&file, text)?;
        let arguments =
            ["-p", &folder.path().display().to_string(), "-e", "stderr", "-c", &file.display().to_string()]
                .map(str::to_owned);
        // TERM, for its master has to end the worker.
        let process =
            cores.start(&crate::program("nginx")?, &arguments, &folder.path().join("log"), "TERM")?;
        Self::started(address, "nginx", process, folder).await
    }

    async fn started(
        address: SocketAddr,
        name: &str,
        mut process: Process,
        folder: TempDir,
    ) -> anyhow::Result<Self> {
        until("the proxy listens", async || {
            assert!(process.runs(), "{name} has ended: {}", process.output());
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
