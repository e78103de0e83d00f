//! The Redis store against plain MULTI and INCRBY: 64 callers on one connection, each waiting for its answer before it
//! asks again. Redis has a core, both clients have another, in turn.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use redis::Value;
use sluice_store::{LimitSpec, RedisOptions, RedisStore, StoreHealth};
use sluice_tests::process::{Process, free_port};
use sluice_tests::wait::until;

use crate::cores::Cores;
use crate::keys::{Random, check, key, limit};
use crate::plain_redis::PlainRedis;
use crate::procfs::Processes;
use crate::row::{Checks, Row};

const ROUNDS: u64 = 5;
const CALLERS: u64 = 64;
const CHECKS: u64 = 256_000;
const NAME: &str = "MULTI/INCRBY/PEXPIRE";
const MANY: u64 = 1_000_000_000;
/// How many are admitted where it is seen that both deny.
const FEW: u64 = 1_000;

/// Measures 100k keys and one.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let folder = tempfile::tempdir()?;
    let (_process, url) = start(cores, folder.path()).await?;
    let mut options = RedisOptions::new(&url);
    options.latency_budget = Duration::from_secs(10);
    let store = Arc::new(RedisStore::start(options)?);
    until("the store is healthy", async || (store.health() == StoreHealth::Healthy).then_some(())).await;
    let plain = PlainRedis::connect(&url).await?;
    let bench = Bench { redis: Processes::started("redis-server")?, store, plain };

    let mut denials = Checks::default();
    let few = limit("bench/policy/few", FEW)?;
    let ours = bench.run(Side::Store, &few, 1, 0).await?;
    let peers = bench.run(Side::Plain, &few, 1, 0).await?;
    denials.both(&format!("admitted of {CHECKS} with a limit of {FEW}"), ours.admitted, peers.admitted, FEW);

    let mut rows = bench.compare("100k keys", 100_000, denials.clone()).await?;
    rows.extend(bench.compare("one hot key", 1, denials).await?);
    Ok(rows)
}

async fn start(cores: Cores, folder: &std::path::Path) -> anyhow::Result<(Process, String)> {
    let port = free_port();
    let arguments = [
        crate::peer_file("redis.conf").display().to_string(),
        "--port".to_owned(),
        port.to_string(),
        "--dir".to_owned(),
        folder.display().to_string(),
    ];
    let program = crate::program("redis-server")?;
    let process = cores.start(&program, &arguments, &folder.join("redis.log"), "KILL")?;
    let url = format!("redis://127.0.0.1:{port}");
    until("Redis answers", async || {
        let mut connection =
            redis::Client::open(url.as_str()).ok()?.get_multiplexed_async_connection().await.ok()?;
        redis::cmd("PING").query_async::<Value>(&mut connection).await.ok()
    })
    .await;
    Ok((process, url))
}

#[derive(Debug, Clone, Copy)]
enum Side {
    Store,
    Plain,
}

/// One round of one side.
struct Round {
    admitted: u64,
    wall: Duration,
    client: Duration,
    server: Duration,
}

struct Bench {
    redis: Processes,
    store: Arc<RedisStore>,
    plain: PlainRedis,
}

impl Bench {
    async fn compare(&self, what: &str, clients: u64, mut checks: Checks) -> anyhow::Result<Vec<Row>> {
        let limit = limit(&format!("bench/policy/{clients}"), MANY)?;
        // A round that is not measured makes the keys.
        for side in [Side::Store, Side::Plain] {
            self.run(side, &limit, clients, ROUNDS).await?;
        }
        let mut rounds = Vec::new();
        for round in 0..ROUNDS {
            // Who goes first alternates.
            rounds.push(if round % 2 == 0 {
                let mine = self.run(Side::Store, &limit, clients, round).await?;
                (mine, self.run(Side::Plain, &limit, clients, round).await?)
            } else {
                let theirs = self.run(Side::Plain, &limit, clients, round).await?;
                (self.run(Side::Store, &limit, clients, round).await?, theirs)
            });
        }
        let sum = |of: fn(&(Round, Round)) -> &Round| rounds.iter().map(|round| of(round).admitted).sum();
        checks.both("admitted while measured", sum(|r| &r.0), sum(|r| &r.1), ROUNDS * CHECKS);
        let row = |title: &str, unit: &str, value: fn(&Round) -> f64| {
            let values: Vec<_> = rounds.iter().map(|(ours, peer)| (value(ours), value(peer))).collect();
            Row::compared(format!("Redis store: {what}, {title}"), unit, &values, NAME, &checks)
        };
        Ok(vec![
            row("throughput", "checks/s", |round| CHECKS as f64 / round.wall.as_secs_f64()),
            row("CPU of Redis", "us/check", |round| micros(round.server)),
            row("CPU of the client", "us/check", |round| micros(round.client)),
        ])
    }

    async fn run(
        &self,
        side: Side,
        limit: &Arc<LimitSpec>,
        clients: u64,
        seed: u64,
    ) -> anyhow::Result<Round> {
        let own = Processes::own();
        let (client, server, start) = (own.cpu()?, self.redis.cpu()?, Instant::now());
        let callers: Vec<_> = (0..CALLERS)
            .map(|caller| {
                let random = Random::new(seed * CALLERS + caller + 1);
                tokio::spawn(call(
                    side,
                    self.store.clone(),
                    self.plain.clone(),
                    limit.clone(),
                    clients,
                    random,
                ))
            })
            .collect();
        let mut admitted = 0;
        for caller in callers {
            admitted += caller.await.context("a caller panicked")??;
        }
        let wall = start.elapsed();
        let (client, server) = (own.cpu_since(&client)?, self.redis.cpu_since(&server)?);
        Ok(Round { admitted, wall, client, server })
    }
}

/// One caller; how many of its checks were admitted.
async fn call(
    side: Side,
    store: Arc<RedisStore>,
    plain: PlainRedis,
    limit: Arc<LimitSpec>,
    clients: u64,
    mut random: Random,
) -> anyhow::Result<u64> {
    let requests = limit.rates.first().context("a limit without a rate")?.requests.get();
    let mut admitted = 0;
    for _ in 0..CHECKS / CALLERS {
        let key = key(random.below(clients));
        admitted += u64::from(match side {
            Side::Store => store.check(check(&limit, key)).await?.admitted,
            Side::Plain => plain.check(&limit.scope, key, requests).await?,
        });
    }
    Ok(admitted)
}

fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6 / CHECKS as f64
}
