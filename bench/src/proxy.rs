//! CPU per request of the proxy process alone: the sidecar against nginx, each on a core with one worker, before the
//! same static upstream; who calls, and the upstream, on the other core.

use std::time::Duration;

use crate::cores::Cores;
use crate::http::{self, Answers, load};
use crate::proxies::{ADMIT, DENY, Proxy};
use crate::row::{Checks, Row};

const ROUNDS: usize = 5;
const REQUESTS: usize = 40_000;
const CLIENTS: usize = 1_000;
const NAME: &str = "nginx limit_req";

/// Measures admitted and denied requests.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let upstream = http::upstream().await?;
    let sluice = Proxy::sluice(cores, upstream).await?;
    let nginx = Proxy::nginx(cores, upstream).await?;
    Ok(vec![
        compare(&sluice, &nginx, "admitted GET", ADMIT, false).await?,
        compare(&sluice, &nginx, "denied GET (429)", DENY, true).await?,
    ])
}

/// One of the two, and how it answered.
struct Side<'a> {
    proxy: &'a Proxy,
    /// The first request of each client.
    first: Answers,
    /// All that followed.
    later: Answers,
}

async fn compare(
    sluice: &Proxy,
    nginx: &Proxy,
    what: &str,
    path: &'static str,
    denies: bool,
) -> anyhow::Result<Row> {
    let mut sides =
        [sluice, nginx].map(|proxy| Side { proxy, first: Answers::default(), later: Answers::default() });
    let mut rounds = Vec::new();
    // Round 0 is not measured: caches, connections.
    for round in 0..=ROUNDS {
        // New clients for each round, known before it is measured: nginx admits each again after a minute.
        let prefix = format!("round-{round}-client");
        let mut cost = [0.0; 2];
        // Who goes first alternates.
        for index in if round % 2 == 0 { [0, 1] } else { [1, 0] } {
            let Side { proxy, first, later } = &mut sides[index];
            *first += load(proxy.address, path, &prefix, CLIENTS, CLIENTS).await?;
            let (cpu, answers) = measured(proxy, path, &prefix).await?;
            *later += answers;
            cost[index] = cpu.as_secs_f64() * 1e6 / REQUESTS as f64;
        }
        if round > 0 {
            rounds.push((cost[0], cost[1]));
        }
    }
    let [ours, peers] = sides;
    let all = (REQUESTS * (ROUNDS + 1)) as u64;
    let denied = if denies { all } else { 0 };
    let clients = (CLIENTS * (ROUNDS + 1)) as u64;
    let mut checks = Checks::default();
    checks.both("first requests with 200", ours.first.admitted, peers.first.admitted, clients);
    checks.both("then 200", ours.later.admitted, peers.later.admitted, all - denied);
    checks.both("then 429", ours.later.denied, peers.later.denied, denied);
    Ok(Row::compared(format!("proxy CPU: {what}"), "us/request", &rounds, NAME, &checks))
}

async fn measured(proxy: &Proxy, path: &'static str, prefix: &str) -> anyhow::Result<(Duration, Answers)> {
    let before = proxy.processes.cpu()?;
    let answers = load(proxy.address, path, prefix, CLIENTS, REQUESTS).await?;
    Ok((proxy.processes.cpu_since(&before)?, answers))
}
