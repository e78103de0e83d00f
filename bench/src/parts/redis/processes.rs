//! Many processes with one caller each, which leaves nothing to batch, against MULTI/INCRBY.

use anyhow::Context as _;
use sluice_store::{CheckRequest, Counter, Store as _};

use super::caller::{CLIENTS, PROCESSES, SCOPE};
use crate::peers::multi_incrby;
use crate::report::row::{Aim, Row};
use crate::report::sample::Sample;
use crate::report::verification::Verification;
use crate::support::child::Child;
use crate::support::cores::Cores;
use crate::support::keys::{UNREACHABLE, counter, key, limit};
use crate::support::redis_server::RedisServer;
use crate::support::rounds::{Side, interleave};

const ROUNDS: u64 = 5;
/// Number of checks of each process in a round.
const CHECKS: u64 = 250;
/// Number of rounds of empty calls.
const PING_ROUNDS: u64 = 3;

/// All processes and their Redis.
struct Fleet {
    redis: RedisServer,
    children: Vec<Child>,
}

/// One round of all processes.
struct Round {
    /// CPU time of Redis a check, in microseconds.
    redis_micros: f64,
    admitted: u64,
}

/// Measures both sides, and an empty call.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let mut fleet = Fleet::start(cores).await?;
    let run = async |side: Side, round| fleet.run(side.of(["store", "multi"]), round).await;
    let rounds = interleave(ROUNDS, run).await?;
    let mut pings = Vec::new();
    for round in 0..PING_ROUNDS {
        pings.push(fleet.run("ping", round).await?.redis_micros);
    }
    let Fleet { redis, children } = fleet;
    drop(children);

    let mut verification = Verification::default();
    let total = ROUNDS * PROCESSES * CHECKS;
    let ours = rounds.iter().map(|both| both.0.admitted).sum();
    let peers = rounds.iter().map(|both| both.1.admitted).sum();
    verification.expect("Sluice: admitted while measured", ours, total);
    verification.expect("peer: admitted while measured", peers, total);
    let all = (ROUNDS + 1) * PROCESSES * CHECKS;
    verification.expect("Sluice: counted in Redis in all rounds", counted(&redis).await?, all);
    let title = format!("Redis store: {PROCESSES} processes of one caller");
    let values: Vec<_> = rounds.iter().map(|(ours, peers)| (ours.redis_micros, peers.redis_micros)).collect();
    let what = format!("{title}, CPU of Redis");
    Ok(vec![
        Row::compared(what, "us/check", &values, multi_incrby::NAME, &verification)
            .with_aim(Aim::RatioAtMost(1.25)),
        Row::sampled(
            format!("{title}, CPU of Redis for an empty call (PING)"),
            "us/call",
            Sample::of(pings.into_iter()),
            &Verification::default(),
        ),
    ])
}

impl Fleet {
    async fn start(cores: Cores) -> anyhow::Result<Self> {
        let redis = RedisServer::start(cores).await?;
        let address = redis.url.trim_start_matches("redis://");
        let children =
            (0..PROCESSES).map(|number| Child::start_role(&["caller", address, &number.to_string()]));
        let children = children.collect::<anyhow::Result<Vec<_>>>()?;
        let children =
            children.into_iter().map(Child::wait_until_ready).collect::<anyhow::Result<Vec<_>>>()?;
        Ok(Self { redis, children })
    }

    /// Runs one round in a mode of [`caller`](super::caller).
    async fn run(&mut self, mode: &str, round: u64) -> anyhow::Result<Round> {
        let before = self.redis.processes.cpu()?;
        for child in &mut self.children {
            child.send(&format!("{mode} {CHECKS} {round}"))?;
        }
        let mut admitted = 0;
        for child in &mut self.children {
            admitted += child.receive()?.parse::<u64>()?;
        }
        let cpu = self.redis.processes.cpu_since(&before)?.as_secs_f64() * 1e6;
        Ok(Round { redis_micros: cpu / (PROCESSES * CHECKS) as f64, admitted })
    }
}

/// Returns the number of requests counted for all clients, by checks with a cost of 0.
async fn counted(redis: &RedisServer) -> anyhow::Result<u64> {
    let (store, limit) = (redis.store().await?, limit(SCOPE, UNREACHABLE)?);
    let callers: Vec<_> = (0..PROCESSES)
        .map(|caller| {
            let (store, limit) = (store.clone(), limit.clone());
            tokio::spawn(async move {
                let mut sum = 0;
                for client in (caller..CLIENTS).step_by(PROCESSES as usize) {
                    let counter = Counter { cost: 0, ..counter(&limit, key(client)) };
                    let response = store.check(CheckRequest::from_iter([counter])).await?;
                    sum += response.decisions.iter().map(|rate| rate.limit - rate.remaining).sum::<u64>();
                }
                anyhow::Ok(sum)
            })
        })
        .collect();
    let mut sum = 0;
    for caller in callers {
        sum += caller.await.context("a caller panicked")??;
    }
    Ok(sum)
}
