//! The proxies in front of the upstream: the sidecar as `sluice run`, and nginx with `limit_req`. Each has one
//! worker, and the limits in `bench/peers/`.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};

use anyhow::Context as _;
use sluice_tests::process::{Process, binary, free_port};
use sluice_tests::wait::until;
use tempfile::TempDir;
use tokio::net::TcpStream;

use crate::support::cores::Cores;
use crate::support::paths::{peer_file, program};
use crate::support::procfs::Processes;

/// Path with a limit that is never reached.
pub(crate) const ADMIT: &str = "/admit/";
/// Path where only the first request of a client is admitted.
pub(crate) const DENY: &str = "/deny/";

/// A running proxy.
pub(crate) struct Proxy {
    pub(crate) address: SocketAddr,
    pub(crate) processes: Processes,
    _process: Process,
    _folder: TempDir,
}

/// A program to start.
pub(crate) struct Program<'a> {
    /// Name of its processes.
    pub(crate) name: &'a str,
    pub(crate) file: PathBuf,
    pub(crate) arguments: Vec<String>,
    /// Signal that ends it and its children.
    pub(crate) signal: &'a str,
}

impl Proxy {
    /// Starts the sidecar with the memory store.
    pub(crate) async fn start_sluice(cores: Cores, upstream: SocketAddr) -> anyhow::Result<Self> {
        let policies = std::fs::read_to_string(peer_file("sluice.yaml"))?;
        Self::start_sluice_with(cores, upstream, &policies).await
    }

    /// Starts the sidecar with these policies and the memory store.
    pub(crate) async fn start_sluice_with(
        cores: Cores,
        upstream: SocketAddr,
        policies: &str,
    ) -> anyhow::Result<Self> {
        Self::start_sluice_in(cores, upstream, policies, &["--store=memory"]).await
    }

    /// Starts the sidecar with these policies and the store of these arguments.
    pub(crate) async fn start_sluice_in(
        cores: Cores,
        upstream: SocketAddr,
        policies: &str,
        store: &[&str],
    ) -> anyhow::Result<Self> {
        let folder = tempfile::tempdir()?;
        let file = folder.path().join("policies.yaml");
        std::fs::write(&file, policies)?;
        let address = free_address();
        let mut arguments = vec![
            "run".to_owned(),
            format!("--policy={}", file.display()),
            format!("--upstream=http://{upstream}"),
            format!("--listen={address}"),
            format!("--admin={}", free_address()),
            "--workers=1".to_owned(),
        ];
        arguments.extend(store.iter().copied().map(str::to_owned));
        let sluice = Program { name: "sluice", file: binary("sluice"), arguments, signal: "KILL" };
        Self::start(cores, sluice, address, folder).await
    }

    /// Starts nginx.
    pub(crate) async fn start_nginx(cores: Cores, upstream: SocketAddr) -> anyhow::Result<Self> {
        let (folder, address) = (tempfile::tempdir()?, free_address());
        let values = [("@LISTEN@", address.to_string()), ("@UPSTREAM@", upstream.to_string())];
        let file = configure("nginx.conf", &values, folder.path())?;
        let arguments =
            ["-p", &folder.path().display().to_string(), "-e", "stderr", "-c", &file.display().to_string()]
                .map(str::to_owned)
                .into();
        // TERM lets the master end its worker.
        let nginx = Program { name: "nginx", file: program("nginx")?, arguments, signal: "TERM" };
        Self::start(cores, nginx, address, folder).await
    }

    /// Starts a program on the measured core and waits until it listens on an address. Its output goes to the
    /// folder, which is removed with the proxy.
    pub(crate) async fn start(
        cores: Cores,
        program: Program<'_>,
        address: SocketAddr,
        folder: TempDir,
    ) -> anyhow::Result<Self> {
        let Program { name, file, arguments, signal } = program;
        let others = Processes::started(name).ok();
        let mut process = cores.start(&file, &arguments, &folder.path().join("log"), signal)?;
        until("the proxy listens", async || {
            assert!(process.is_running(), "{name} has exited: {}", process.output());
            TcpStream::connect(address).await.ok()
        })
        .await;
        let started = Processes::started(name).with_context(|| process.output())?;
        let processes = match others {
            Some(others) => started.without(&others),
            None => started,
        };
        Ok(Self { address, processes, _process: process, _folder: folder })
    }
}

/// Writes a configuration from `bench/peers/` to a folder, with its names replaced by values, and returns its path.
pub(crate) fn configure(name: &str, values: &[(&str, String)], folder: &Path) -> anyhow::Result<PathBuf> {
    let template = std::fs::read_to_string(peer_file(name))?;
    let text = values.iter().fold(template, |text, (name, value)| text.replace(name, value));
    let file = folder.join(name);
    std::fs::write(&file, text)?;
    Ok(file)
}

/// Returns an address without a listener.
pub(crate) fn free_address() -> SocketAddr {
    SocketAddr::from(([127, 0, 0, 1], free_port()))
}
