//! CPU time of the proxy process for a request: the sidecar against nginx, each with one worker on the
//! measured core, in front of the same static upstream. Clients and upstream run on the other core.

use super::load::{Responses, load, upstream};
use super::proxies::{ADMIT, DENY, Proxy};
use crate::report::row::Row;
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::rounds::interleave;

const ROUNDS: u64 = 5;
const REQUESTS: usize = 40_000;
const CLIENTS: usize = 1_000;
const PEER: &str = "nginx limit_req";

/// Responses of one proxy in all rounds.
#[derive(Debug, Clone, Copy, Default)]
struct Totals {
    /// To the first request of each client.
    first: Responses,
    /// To the measured requests.
    measured: Responses,
}

/// Measures admitted and denied requests.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let upstream = upstream().await?;
    let sluice = Proxy::start_sluice(cores, upstream).await?;
    let nginx = Proxy::start_nginx(cores, upstream).await?;
    let proxies = [&sluice, &nginx];
    Ok(vec![
        compare(proxies, "admitted GET", ADMIT, false).await?,
        compare(proxies, "denied GET (429)", DENY, true).await?,
    ])
}

async fn compare(proxies: [&Proxy; 2], what: &str, path: &'static str, denies: bool) -> anyhow::Result<Row> {
    let mut totals = [Totals::default(); 2];
    let rounds = interleave(ROUNDS, async |side, round| {
        let [ours, peers] = &mut totals;
        run(side.of(proxies), path, round, side.of([ours, peers])).await
    })
    .await?;
    let [ours, peers] = totals;
    let clients = CLIENTS as u64 * (ROUNDS + 1);
    let requests = REQUESTS as u64 * (ROUNDS + 1);
    let (admitted, denied) = if denies { (0, requests) } else { (requests, 0) };
    let mut verification = Verification::default();
    verification.expect_both("first requests with 200", ours.first.admitted, peers.first.admitted, clients);
    verification.expect_both("then 200", ours.measured.admitted, peers.measured.admitted, admitted);
    verification.expect_both("then 429", ours.measured.denied, peers.measured.denied, denied);
    Ok(Row::compared(format!("proxy CPU: {what}"), "us/request", &rounds, PEER, &verification))
}

/// Runs one round of one proxy and returns the CPU time of a request, in microseconds.
async fn run(proxy: &Proxy, path: &'static str, round: u64, totals: &mut Totals) -> anyhow::Result<f64> {
    // New clients in each round, because nginx admits each client again after a minute. Their first requests
    // are not measured.
    let prefix = format!("round-{round}-client");
    totals.first += load(proxy.address, path, &prefix, CLIENTS, CLIENTS).await?;
    let before = proxy.processes.cpu()?;
    totals.measured += load(proxy.address, path, &prefix, CLIENTS, REQUESTS).await?;
    Ok(proxy.processes.cpu_since(&before)?.as_secs_f64() * 1e6 / REQUESTS as f64)
}
