//! The Redis store: 256 callers on one connection, each waiting for its answer before it asks again. Redis has a core,
//! the clients have another, in turn. Against plain MULTI and INCRBY, against `limitador`'s storages in Redis, and a
//! limit for all beside the limit of each client against the latter alone.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sluice_store::{CheckRequest, LimitSpec, RedisStore};

use crate::child::{Child, numbers};
use crate::cores::Cores;
use crate::keys::{MANY, PERIOD, check, counter, key, limit, limit_of};
use crate::plain_redis::PlainRedis;
use crate::procfs::Processes;
use crate::random::Random;
use crate::redis_server::RedisServer;
use crate::rounds::{OURS, interleave};
use crate::row::{Aim, Checks, Row};

const ROUNDS: u64 = 5;
const CALLERS: u64 = 256;
const CHECKS: u64 = 102_400;
const PLAIN: &str = "MULTI/INCRBY/PEXPIRE";
/// Against `limitador`, which takes its time.
const FEWER_ROUNDS: u64 = 3;
/// How many are admitted where it is seen that both deny.
const FEW: u64 = 1_000;

/// What is asked: the clients are told apart, or there is one key for all.
#[derive(Debug, Clone)]
pub(crate) struct Load {
    /// The limit of each client.
    pub(crate) limit: Arc<LimitSpec>,
    /// A limit that all share.
    pub(crate) global: Option<Arc<LimitSpec>>,
    /// How many clients there are.
    pub(crate) clients: u64,
    /// How many ask at a time.
    pub(crate) callers: u64,
    /// How often all of them together ask.
    pub(crate) checks: u64,
}

impl Load {
    /// The check of a client.
    fn check(&self, client: u64) -> CheckRequest {
        let mut check = check(&self.limit, key(client));
        check.extend(self.global.as_ref().map(|limit| counter(limit, 0)));
        check
    }
}

/// Who asks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    Store,
    Plain,
}

/// One round of one side.
#[derive(Debug)]
pub(crate) struct Round {
    checks: u64,
    admitted: u64,
    wall: Duration,
    client: Duration,
    server: Duration,
}

impl Round {
    /// Checks a second.
    pub(crate) fn throughput(&self) -> f64 {
        self.checks as f64 / self.wall.as_secs_f64()
    }

    /// Checks in a second of CPU, the client's and Redis's.
    fn per_cpu(&self) -> f64 {
        self.checks as f64 / (self.client + self.server).as_secs_f64()
    }

    /// Microseconds of the client's CPU a check.
    pub(crate) fn client(&self) -> f64 {
        self.client.as_secs_f64() * 1e6 / self.checks as f64
    }

    /// Microseconds of Redis's CPU a check.
    pub(crate) fn server(&self) -> f64 {
        self.server.as_secs_f64() * 1e6 / self.checks as f64
    }
}

/// A Redis and who asks it.
pub(crate) struct Bench {
    pub(crate) redis: RedisServer,
    store: Arc<RedisStore>,
    plain: PlainRedis,
}

/// Measures against MULTI and INCRBY, and the limit for all.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let bench = Bench::start(cores).await?;
    let few = load(limit("bench/policy/few", FEW)?, 1);
    let mut denials = Checks::default();
    let ours = bench.run(Side::Store, &few, 0).await?;
    let peers = bench.run(Side::Plain, &few, 0).await?;
    denials.both(&format!("admitted of {CHECKS} with a limit of {FEW}"), ours.admitted, peers.admitted, FEW);

    let hour = Duration::from_secs(3_600);
    let three = limit_of("bench/policy/three", MANY, &[PERIOD, hour, 24 * PERIOD])?;
    let mut rows = Vec::new();
    for (what, load, aim) in [
        ("100k keys", load(limit("bench/policy/keys", MANY)?, 100_000), 0.75),
        ("one hot key", load(limit("bench/policy/hot", MANY)?, 1), 0.12),
        ("three rates, 100k keys", load(three, 100_000), 0.4),
    ] {
        let sides = [Side::Store, Side::Plain];
        rows.extend(bench.compare(what, sides, PLAIN, [&load, &load], aim, denials.clone()).await?);
    }
    let alone = load(limit("bench/policy/client", MANY)?, 100_000);
    let beside = Load { global: Some(limit("bench/policy/global", MANY)?), ..alone.clone() };
    let (what, name) = ("a limit for all beside one for each of 100k", "the limit of each alone");
    let sides = [Side::Store, Side::Store];
    rows.extend(bench.compare(what, sides, name, [&beside, &alone], 1.3, Checks::default()).await?);
    Ok(rows)
}

/// Measures against `limitador`.
pub(crate) async fn measure_limitador(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let bench = Bench::start(cores).await?;
    let mut rows = Vec::new();
    for (what, clients) in [("100k keys", 100_000), ("one hot key", 1)] {
        let load = load(limit(&format!("bench/policy/{clients}"), MANY)?, clients);
        // The cached one takes its time where all clients are new to it.
        let cached = if clients == 1 { CHECKS } else { 25_600 };
        for (kind, name, checks) in [
            ("async", "limitador, AsyncRedisStorage", 25_600),
            ("cached", "limitador, CachedRedisStorage (decides without Redis, writes each second)", cached),
        ] {
            let start = |requests: u64| {
                let arguments =
                    ["redis", kind, &bench.redis.url, &clients.to_string(), &requests.to_string()];
                Child::limitador(&arguments)?.ready()
            };
            let mut facts = Checks::default();
            if clients == 1 {
                bench.redis.tell(&["FLUSHALL"]).await?;
                let (_, admitted) = numbers(&start(FEW)?.ask(&format!("{CALLERS} {checks} 0"))?)?;
                facts.note(format!("limitador admitted {admitted} of {checks} with a limit of {FEW}"));
                bench.redis.tell(&["FLUSHALL"]).await?;
            }
            let mut child = start(MANY)?;
            let processes = Processes::of([child.id()]);
            let rounds = interleave(FEWER_ROUNDS, async |side, round| {
                if side == OURS {
                    return bench.run(Side::Store, &load, round).await;
                }
                let (client, server) = (processes.cpu()?, bench.redis.processes.cpu()?);
                let (nanos, admitted) = numbers(&child.ask(&format!("{CALLERS} {checks} {round}"))?)?;
                let wall = Duration::from_nanos(nanos as u64);
                if kind == "cached" {
                    // What it owes Redis.
                    tokio::time::sleep(Duration::from_millis(1_500)).await;
                }
                let client = processes.cpu_since(&client)?;
                let server = bench.redis.processes.cpu_since(&server)?;
                Ok(Round { checks, admitted, wall, client, server })
            })
            .await?;
            admitted(&mut facts, &rounds);
            let row = |title: &str, unit: &str, value: fn(&Round) -> f64| {
                let values: Vec<_> = rounds.iter().map(|(ours, peer)| (value(ours), value(peer))).collect();
                Row::compared(format!("Redis store: {what}, {title}"), unit, &values, name, &facts)
            };
            let both = [
                row("throughput", "checks/s", Round::throughput),
                row("checks per CPU of client and Redis", "checks/CPU s", Round::per_cpu),
            ];
            // The cached one is no peer: it decides without asking.
            let aimed = kind == "async";
            rows.extend(both.map(|row| if aimed { row.aim(Aim::RatioAtLeast(3.0)) } else { row }));
        }
    }
    Ok(rows)
}

fn load(limit: Arc<LimitSpec>, clients: u64) -> Load {
    Load { limit, global: None, clients, callers: CALLERS, checks: CHECKS }
}

fn admitted(checks: &mut Checks, rounds: &[(Round, Round)]) {
    let sum = |of: fn(&(Round, Round)) -> &Round, what: fn(&Round) -> u64| {
        rounds.iter().map(|round| what(of(round))).sum::<u64>()
    };
    for (who, of) in [("Sluice", (|both| &both.0) as fn(&(Round, Round)) -> &Round), ("peer", |both| &both.1)]
    {
        let what = format!("{who}: admitted while measured");
        checks.one(&what, sum(of, |round| round.admitted), sum(of, |round| round.checks));
    }
}

impl Bench {
    /// Starts a Redis and connects.
    pub(crate) async fn start(cores: Cores) -> anyhow::Result<Self> {
        let redis = RedisServer::start(cores).await?;
        let (store, plain) = (redis.store().await?, PlainRedis::new(redis.connection().await?));
        Ok(Self { redis, store, plain })
    }

    /// The aim is of Redis's CPU.
    async fn compare(
        &self,
        what: &str,
        sides: [Side; 2],
        name: &str,
        loads: [&Load; 2],
        aim: f64,
        mut checks: Checks,
    ) -> anyhow::Result<Vec<Row>> {
        let run = async |side: usize, round| self.run(sides[side], loads[side], round).await;
        let rounds = interleave(ROUNDS, run).await?;
        admitted(&mut checks, &rounds);
        let row = |title: &str, unit: &str, value: fn(&Round) -> f64| {
            let values: Vec<_> = rounds.iter().map(|(ours, peer)| (value(ours), value(peer))).collect();
            Row::compared(format!("Redis store: {what}, {title}"), unit, &values, name, &checks)
        };
        Ok(vec![
            row("CPU of Redis", "us/check", Round::server).aim(Aim::RatioAtMost(aim)),
            row("CPU of the client", "us/check", Round::client),
            row("throughput", "checks/s", Round::throughput),
        ])
    }

    /// Asks.
    pub(crate) async fn run(&self, side: Side, load: &Load, seed: u64) -> anyhow::Result<Round> {
        let own = Processes::own();
        let (client, server, start) = (own.cpu()?, self.redis.processes.cpu()?, Instant::now());
        let callers: Vec<_> = (0..load.callers)
            .map(|caller| {
                let random = Random::new(seed * load.callers + caller + 1);
                tokio::spawn(call(side, self.store.clone(), self.plain.clone(), load.clone(), random))
            })
            .collect();
        let mut admitted = 0;
        for caller in callers {
            admitted += caller.await.context("a caller panicked")??;
        }
        let wall = start.elapsed();
        let (client, server) = (own.cpu_since(&client)?, self.redis.processes.cpu_since(&server)?);
        let checks = load.checks / load.callers * load.callers;
        Ok(Round { checks, admitted, wall, client, server })
    }
}

/// One caller; how many of its checks were admitted.
async fn call(
    side: Side,
    store: Arc<RedisStore>,
    plain: PlainRedis,
    load: Load,
    mut random: Random,
) -> anyhow::Result<u64> {
    let limit = &load.limit;
    let requests = limit.rates.first().context("a limit without a rate")?.requests.get();
    let mut admitted = 0;
    for _ in 0..load.checks / load.callers {
        let client = random.below(load.clients);
        admitted += u64::from(match side {
            Side::Store => store.check(load.check(client)).await?.admitted,
            Side::Plain => plain.check(&limit.scope, key(client), requests, limit.rates.len()).await?,
        });
    }
    Ok(admitted)
}
