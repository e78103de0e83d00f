//! Many processes with one caller each, as sidecars of quiet pods: there is nothing to batch. Against the same script,
//! called by each process for itself, once a check.

use std::sync::Arc;

use anyhow::{Context as _, bail, ensure};
use redis::Value;
use redis::aio::MultiplexedConnection;
use sluice_store::{CheckRequest, Counter, LimitSpec, RedisOptions, RedisStore, StoreHealth};
use sluice_tests::wait::until;
use tokio::time::Duration;

use crate::child::{Child, numbers, serve};
use crate::cores::Cores;
use crate::keys::{MANY, check, counter, key, limit};
use crate::random::Random;
use crate::redis_server::{RedisServer, connect};
use crate::rounds::interleave;
use crate::row::{Aim, Checks, Row, Sample};
use crate::wire::Call;

const ROUNDS: u64 = 5;
const PROCESSES: u64 = 64;
/// Of each process.
const CHECKS: u64 = 250;
const CLIENTS: u64 = 100_000;
const SCOPE: &str = "bench/policy/limit";
const SIDES: [&str; 2] = ["store", "plain"];
/// How often an empty call is measured.
const PINGS: u64 = 3;
const NAME: &str = "the same script, EVALSHA once a check";

/// One round of one side: a check's share of it.
struct Round {
    /// Microseconds of Redis's CPU.
    server: f64,
    calls: f64,
    admitted: u64,
}

/// Measures 64 processes.
pub(crate) async fn measure(cores: Cores) -> anyhow::Result<Vec<Row>> {
    let redis = RedisServer::start(cores).await?;
    let address = redis.url.trim_start_matches("redis://").to_owned();
    let children = (0..PROCESSES).map(|number| Child::role(&["caller", &address, &number.to_string()]));
    let children = children.collect::<anyhow::Result<Vec<_>>>()?;
    let mut children = children.into_iter().map(Child::ready).collect::<anyhow::Result<Vec<_>>>()?;
    let mut seen = 0;
    let mut run = async |side: &str, round: u64| {
        children.iter_mut().try_for_each(|child| child.say(&format!("get-ready {side}")))?;
        for child in &mut children {
            ensure!(child.answer()? == "ready", "a process is not ready");
        }
        redis.tell(&["CONFIG", "RESETSTAT"]).await?;
        let before = redis.processes.cpu()?;
        for child in &mut children {
            child.say(&format!("{side} {CHECKS} {round}"))?;
        }
        let mut admitted = 0;
        for child in &mut children {
            let (looks, passed) = numbers(&child.answer()?)?;
            seen += looks as u64;
            admitted += passed;
        }
        let server = redis.processes.cpu_since(&before)?.as_secs_f64() * 1e6;
        let calls = if side == "ping" { 0 } else { redis.script_calls().await?.0 };
        let share = |value: f64| value / (PROCESSES * CHECKS) as f64;
        Ok(Round { server: share(server), calls: share(calls as f64), admitted })
    };
    let rounds = interleave(ROUNDS, async |side, round| run(SIDES[side], round).await).await?;
    let mut pings = Vec::new();
    for round in 0..PINGS {
        pings.push(run("ping", round).await?.server);
    }
    drop(children);

    let mut checks = Checks::default();
    let total = ROUNDS * PROCESSES * CHECKS;
    checks.one("Sluice: admitted while measured", rounds.iter().map(|both| both.0.admitted).sum(), total);
    checks.one("peer: answered while measured", rounds.iter().map(|both| both.1.admitted).sum(), total);
    // And the calls of the store that a process has looked at, to make its own of them.
    let all = (ROUNDS + 1) * PROCESSES * 2 * CHECKS + seen;
    checks.one("counted in Redis by all rounds of both", counted(&redis).await?, all);
    let row = |title: &str, unit: &str, value: fn(&Round) -> f64| {
        let values: Vec<_> = rounds.iter().map(|(ours, peer)| (value(ours), value(peer))).collect();
        Row::compared(
            format!("Redis store: {PROCESSES} processes of one caller, {title}"),
            unit,
            &values,
            NAME,
            &checks,
        )
    };
    Ok(vec![
        row("CPU of Redis", "us/check", |round| round.server).aim(Aim::RatioAtMost(0.6)),
        row("calls to Redis", "calls/check", |round| round.calls),
        Row::sampled(
            format!(
                "Redis store: {PROCESSES} processes of one caller, CPU of Redis for an empty call (PING)"
            ),
            "us/call",
            Sample::of(pings.into_iter()),
            &Checks::default(),
        ),
    ])
}

/// How many requests of all clients have been counted: each is asked for without taking anything.
async fn counted(redis: &RedisServer) -> anyhow::Result<u64> {
    let (store, limit) = (redis.store().await?, limit(SCOPE, MANY)?);
    let callers: Vec<_> = (0..PROCESSES)
        .map(|caller| {
            let (store, limit) = (store.clone(), limit.clone());
            tokio::spawn(async move {
                let mut sum = 0;
                for client in (caller..CLIENTS).step_by(PROCESSES as usize) {
                    let peek = Counter { cost: 0, ..counter(&limit, key(client)) };
                    let answer = store.check(CheckRequest::from_iter([peek])).await?;
                    sum += answer.decisions.iter().map(|rate| rate.limit - rate.remaining).sum::<u64>();
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

/// A process with one caller: `get-ready SIDE`, then `SIDE CHECKS ROUND`, answered by `LOOKS ADMITTED`, where looks are
/// the calls of the store that were looked at. The sides: `store`, `plain`, `ping`.
pub(crate) fn role(address: &str, number: &str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let number: u64 = number.parse()?;
    let mut caller = runtime.block_on(Caller::connect(address))?;
    serve(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        runtime.block_on(async {
            match words[..] {
                ["get-ready", side] => {
                    if side == "plain" {
                        caller.look().await?;
                    }
                    Ok("ready".to_owned())
                }
                [side, checks, round] => {
                    let random = Random::new(round.parse::<u64>()? * PROCESSES + number + 1);
                    let admitted = match side {
                        "store" => caller.store(checks.parse()?, random).await?,
                        "plain" => caller.plain(checks.parse()?, random).await?,
                        _ => caller.ping(checks.parse()?).await?,
                    };
                    Ok(format!("{} {admitted}", std::mem::take(&mut caller.looks)))
                }
                _ => bail!("{line:?} is not expected"),
            }
        })
    })
}

struct Caller {
    store: RedisStore,
    connection: MultiplexedConnection,
    limit: Arc<LimitSpec>,
    call: Option<Call>,
    address: String,
    looks: u64,
}

impl Caller {
    async fn connect(address: &str) -> anyhow::Result<Self> {
        let url = format!("redis://{address}");
        let mut options = RedisOptions::new(&url);
        options.latency_budget = Duration::from_secs(10);
        let store = RedisStore::start(options)?;
        until("the store is healthy", async || (store.health() == StoreHealth::Healthy).then_some(())).await;
        let connection = connect(&url).await?;
        Ok(Self {
            store,
            connection,
            limit: limit(SCOPE, MANY)?,
            call: None,
            address: address.to_owned(),
            looks: 0,
        })
    }

    /// Looks at a call of the store.
    async fn look(&mut self) -> anyhow::Result<()> {
        self.call = Some(Call::see(&self.address, &counter(&self.limit, key(0))).await?);
        self.looks += 1;
        Ok(())
    }

    async fn store(&self, checks: u64, mut random: Random) -> anyhow::Result<u64> {
        let mut admitted = 0;
        for _ in 0..checks {
            let answer = self.store.check(check(&self.limit, key(random.below(CLIENTS)))).await?;
            admitted += u64::from(answer.admitted);
        }
        Ok(admitted)
    }

    /// What the script answers is not known here, but that it is more than the time, which alone means too late: then the
    /// call is too old, on a machine that is very busy.
    async fn plain(&mut self, checks: u64, mut random: Random) -> anyhow::Result<u64> {
        let mut admitted = 0;
        for _ in 0..checks {
            let name = self.store.key(&counter(&self.limit, key(random.below(CLIENTS))));
            for _ in 0..2 {
                let call = self.call.as_ref().context("not ready")?.with_key(&name);
                let reply: Value = call.query_async(&mut self.connection).await?;
                if matches!(reply, Value::Array(values) if values.len() > 1) {
                    admitted += 1;
                    break;
                }
                self.look().await?;
            }
        }
        Ok(admitted)
    }

    async fn ping(&mut self, calls: u64) -> anyhow::Result<u64> {
        for _ in 0..calls {
            redis::cmd("PING").query_async::<Value>(&mut self.connection).await?;
        }
        Ok(0)
    }
}
