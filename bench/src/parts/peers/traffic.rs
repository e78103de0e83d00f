//! Requests over HTTP/1, by this process, and over HTTP/2, by `h2load`; and an upstream that speaks HTTP/2.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context as _, ensure};
use sluice_tests::process::Process;
use sluice_tests::wait::until;
use tempfile::TempDir;
use tokio::net::TcpStream;
use tokio::process::Command;

use crate::parts::proxy::load::{Responses, api_keys, load_timed};
use crate::parts::proxy::proxies::{configure, free_address};
use crate::support::paths::program;

/// A protocol of both clients and upstream.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Protocol {
    Http1,
    Http2,
}

/// Numbers of responses, and how long each took.
pub(super) type Answers = (Responses, Vec<Duration>);

impl Protocol {
    /// Sends `requests` GETs of `path`. The API keys rotate over `clients`; by HTTP/2 there is one.
    pub(super) async fn send(
        self,
        address: SocketAddr,
        path: &'static str,
        prefix: &str,
        clients: usize,
        requests: usize,
    ) -> anyhow::Result<Answers> {
        match self {
            Self::Http1 => load_timed(address, path, api_keys(prefix, clients), requests).await,
            Self::Http2 => run_h2load(address, path, prefix, requests).await,
        }
    }
}

/// Runs `h2load` on the cores of this process: up to 16 connections with 10 requests in flight each.
async fn run_h2load(address: SocketAddr, path: &str, key: &str, requests: usize) -> anyhow::Result<Answers> {
    let folder = tempfile::tempdir()?;
    let log = folder.path().join("log");
    let output = Command::new(program("h2load")?)
        .args(["-n", &requests.to_string(), "-c", &requests.min(16).to_string(), "-m", "10", "-t", "1"])
        .args(["-H", &format!("x-api-key: {key}")])
        .arg(format!("--log-file={}", log.display()))
        .arg(format!("http://{address}{path}"))
        .output()
        .await?;
    ensure!(output.status.success(), "h2load failed: {}", String::from_utf8_lossy(&output.stderr));
    let (mut responses, mut times) = (Responses::default(), Vec::with_capacity(requests));
    for line in std::fs::read_to_string(log)?.lines() {
        let mut fields = line.split('\t').skip(1);
        match fields.next().context("h2load wrote no status")? {
            "200" => responses.admitted += 1,
            "429" => responses.denied += 1,
            _ => responses.other += 1,
        }
        times.push(Duration::from_micros(fields.next().context("h2load wrote no time")?.parse()?));
    }
    Ok((responses, times))
}

/// An upstream that speaks HTTP/2, on the cores of this process.
pub(super) struct Http2Upstream {
    pub(super) address: SocketAddr,
    _process: Process,
    _folder: TempDir,
}

impl Http2Upstream {
    /// Starts it.
    pub(super) async fn start() -> anyhow::Result<Self> {
        let (folder, address) = (tempfile::tempdir()?, free_address());
        let values = [("@LISTEN@", address.to_string())];
        let file = configure("nginx-http2-upstream.conf", &values, folder.path())?;
        let arguments =
            ["-p", &folder.path().display().to_string(), "-e", "stderr", "-c", &file.display().to_string()]
                .map(str::to_owned);
        let mut process =
            Process::start(&program("nginx")?, &arguments, &[], &folder.path().join("log"), "TERM");
        until("the upstream listens", async || {
            assert!(process.is_running(), "nginx has exited: {}", process.output());
            TcpStream::connect(address).await.ok()
        })
        .await;
        Ok(Self { address, _process: process, _folder: folder })
    }
}
