//! CPU time of the service for checks of applications over HTTP: single ones and batches, with counters in memory, and how long a single
//! one takes.

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use tokio::io::AsyncWriteExt as _;
use tokio::net::TcpStream;

use super::load::read_response;
use super::proxies::{Program, Proxy, free_address};
use crate::report::row::{Aim, Row};
use crate::report::sample::Sample;
use crate::report::verification::Verification;
use crate::support::cores::Cores;

const ROUNDS: usize = 5;
const CONNECTIONS: usize = 32;
const CLIENTS: usize = 1_000;
/// Bodies of a round.
const SINGLE: usize = 40_000;
const BATCHES: usize = 2_000;
const BATCH: usize = 100;
/// Single checks whose time is taken, one after the other.
const TIMED: usize = 5_000;

const POLICY: &str = "apiVersion: sluice.dev/v1alpha1
kind: RateLimitPolicy
metadata: {name: bench, namespace: bench}
spec:
  enforcedBy: [Service]
  limits:
  - name: per-client
    rates: [{requests: 1000000000, per: 1h}]
    key: {parts: [{header: {name: x-client}}]}
";

/// Measures single checks and batches.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let service = start(cores).await?;
    let verification = Verification::default();
    let mut rows = Vec::new();
    for (what, bodies, checks, aim) in [
        ("checks: one in a body, CPU of the service", SINGLE, 1, 40.0),
        ("checks: 100 in a body, CPU of the service", BATCHES, BATCH, 1e6 / 150_000.0),
    ] {
        let mut samples = Vec::new();
        for round in 0..=ROUNDS {
            let before = service.processes.cpu()?;
            load(service.address, bodies, checks).await?;
            let cpu = service.processes.cpu_since(&before)?.as_secs_f64() * 1e6 / (bodies * checks) as f64;
            // The first round warms up.
            samples.extend((round > 0).then_some(cpu));
        }
        let row = Row::sampled(what, "us/check", Sample::of(samples.into_iter()), &verification);
        rows.push(row.with_aim(Aim::AtMost(aim)));
    }
    let mut medians = Vec::new();
    for round in 0..=ROUNDS {
        let mut times = send(service.address, 0..TIMED, 1).await?;
        times.sort_unstable();
        medians.extend((round > 0).then(|| times[TIMED / 2].as_secs_f64() * 1e6));
    }
    let what = "checks: one in a body, one connection, half of the answers within";
    let row = Row::sampled(what, "us", Sample::of(medians.into_iter()), &verification);
    rows.push(row.with_aim(Aim::AtMost(150.0)));
    Ok(rows)
}

/// Starts `sluice serve` with one worker.
async fn start(cores: Cores) -> anyhow::Result<Proxy> {
    let folder = tempfile::tempdir()?;
    let file = folder.path().join("policy.yaml");
    std::fs::write(&file, POLICY)?;
    let address = free_address();
    let arguments = vec![
        "serve".to_owned(),
        format!("--policy={}", file.display()),
        format!("--http={address}"),
        format!("--grpc={}", free_address()),
        format!("--admin={}", free_address()),
        "--workers=1".to_owned(),
        "--store=memory".to_owned(),
    ];
    let file = sluice_tests::process::binary("sluice");
    Proxy::start(cores, Program { name: "sluice", file, arguments, signal: "KILL" }, address, folder).await
}

/// Sends bodies over several connections.
async fn load(address: SocketAddr, bodies: usize, checks: usize) -> anyhow::Result<()> {
    let send = |first| tokio::spawn(send(address, (first..bodies).step_by(CONNECTIONS), checks));
    let tasks: Vec<_> = (0..CONNECTIONS).map(send).collect();
    for task in tasks {
        task.await??;
    }
    Ok(())
}

/// Sends the bodies with these numbers over one connection. Returns how long each took.
async fn send(
    address: SocketAddr,
    numbers: impl Iterator<Item = usize>,
    checks: usize,
) -> anyhow::Result<Vec<Duration>> {
    let mut stream = TcpStream::connect(address).await?;
    stream.set_nodelay(true)?;
    let (mut buffer, mut times) = (vec![0; 64 << 10], Vec::new());
    for number in numbers {
        let body = body(number, checks);
        let head = format!(
            "POST /v1/check HTTP/1.1\r\nhost: bench\r\ncontent-type: application/json\r\ncontent-length: {}\r\n\r\n",
            body.len()
        );
        let request = head + &body;
        let start = Instant::now();
        stream.write_all(request.as_bytes()).await?;
        let status = read_response(&mut stream, &mut buffer).await?;
        times.push(start.elapsed());
        anyhow::ensure!(status == 200, "a check was answered with {status}");
    }
    Ok(times)
}

fn body(number: usize, checks: usize) -> String {
    let check = |n: usize| {
        let client = (number * checks + n) % CLIENTS;
        format!(r#"{{"policy":"bench/bench","limit":"per-client","key":["client-{client}"]}}"#)
    };
    if checks == 1 {
        return check(0);
    }
    let mut body = String::from("{\"checks\":[");
    for n in 0..checks {
        let _ = write!(body, "{}{}", if n > 0 { "," } else { "" }, check(n));
    }
    body + "]}"
}
