//! Concurrent callers on one connection, each waiting for its response before it sends the next check.

use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::Context as _;
use sluice_store::{CheckRequest, LimitSpec, RedisStore, Store as _};

use crate::peers::multi_incrby::MultiIncrby;
use crate::report::verification::Verification;
use crate::support::cores::Cores;
use crate::support::keys::{check, counter, key};
use crate::support::procfs::Processes;
use crate::support::random::Random;
use crate::support::redis_server::RedisServer;
use crate::support::rounds::interleave;

/// The usual number of callers and of checks.
pub(super) const CALLERS: u64 = 256;
pub(super) const CHECKS: u64 = 102_400;

/// A Redis, and the implementations that can be loaded.
pub(super) struct Testbed {
    pub(super) redis: RedisServer,
    store: Arc<RedisStore>,
    functions: Arc<RedisStore>,
    multi_incrby: MultiIncrby,
}

/// The implementation that callers use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Target {
    /// The store, which calls its scripts by EVALSHA.
    Store,
    /// The store, which calls its scripts as functions, by FCALL.
    Functions,
    MultiIncrby,
}

/// The checks that callers send.
#[derive(Debug, Clone)]
pub(super) struct Load {
    /// The limit of each client.
    pub(super) limit: Arc<LimitSpec>,
    /// A second limit, with one counter for all clients.
    pub(super) global: Option<Arc<LimitSpec>>,
    pub(super) clients: u64,
    /// Whether each check is of a client that was never seen before.
    pub(super) new_clients: bool,
    /// Number of concurrent callers.
    pub(super) callers: u64,
    /// Number of checks of all callers together.
    pub(super) checks: u64,
}

impl Load {
    /// The usual number of callers and checks, with one limit.
    pub(super) fn new(limit: Arc<LimitSpec>, clients: u64) -> Self {
        Self { limit, global: None, clients, new_clients: false, callers: CALLERS, checks: CHECKS }
    }

    /// The load of so many callers, which send this number of checks together.
    pub(super) fn of_callers(limit: Arc<LimitSpec>, clients: u64, callers: u64, checks: u64) -> Self {
        Self { callers, checks, ..Self::new(limit, clients) }
    }

    fn check(&self, client: u64) -> CheckRequest {
        let mut check = check(&self.limit, key(client));
        check.extend(self.global.as_ref().map(|limit| counter(limit, 0)));
        check
    }
}

/// Counts and times of one round.
#[derive(Debug)]
pub(super) struct Round {
    pub(super) checks: u64,
    pub(super) admitted: u64,
    pub(super) wall: Duration,
    pub(super) client_cpu: Duration,
    pub(super) redis_cpu: Duration,
}

impl Round {
    /// Checks a second.
    pub(super) fn throughput(&self) -> f64 {
        self.checks as f64 / self.wall.as_secs_f64()
    }

    /// Checks a second of CPU time, of client and Redis together.
    pub(super) fn checks_per_cpu_second(&self) -> f64 {
        self.checks as f64 / (self.client_cpu + self.redis_cpu).as_secs_f64()
    }

    /// CPU time of the client a check, in microseconds.
    pub(super) fn client_micros(&self) -> f64 {
        self.client_cpu.as_secs_f64() * 1e6 / self.checks as f64
    }

    /// Time from a check to its response, in microseconds, if each caller waits for it.
    pub(super) fn latency_micros(&self, callers: u64) -> f64 {
        self.wall.as_secs_f64() * 1e6 * callers as f64 / self.checks as f64
    }

    /// CPU time of Redis a check, in microseconds.
    pub(super) fn redis_micros(&self) -> f64 {
        self.redis_cpu.as_secs_f64() * 1e6 / self.checks as f64
    }
}

impl Testbed {
    /// Starts a Redis and connects all implementations.
    pub(super) async fn start(cores: Cores) -> anyhow::Result<Self> {
        let redis = RedisServer::start(cores).await?;
        let (store, functions) = (redis.store().await?, redis.store_of_functions().await?);
        let multi_incrby = MultiIncrby::new(redis.connection().await?);
        Ok(Self { redis, store, functions, multi_incrby })
    }

    /// Runs rounds of two targets in turn, each with its load.
    pub(super) async fn compare(
        &self,
        rounds: u64,
        targets: [Target; 2],
        loads: [&Load; 2],
    ) -> anyhow::Result<Vec<(Round, Round)>> {
        interleave(rounds, async |side, round| self.run(side.of(targets), side.of(loads), round).await).await
    }

    /// Runs one round of a load.
    pub(super) async fn run(&self, target: Target, load: &Load, seed: u64) -> anyhow::Result<Round> {
        let own = Processes::own();
        let (client, redis, start) = (own.cpu()?, self.redis.processes.cpu()?, Instant::now());
        let callers: Vec<_> = (0..load.callers)
            .map(|caller| {
                let random = Clients { caller, seed, random: Random::new(seed * load.callers + caller + 1) };
                let store = if target == Target::Functions { &self.functions } else { &self.store };
                let (store, multi_incrby) = (store.clone(), self.multi_incrby.clone());
                tokio::spawn(call(target, store, multi_incrby, load.clone(), random))
            })
            .collect();
        let mut admitted = 0;
        for caller in callers {
            admitted += caller.await.context("a caller panicked")??;
        }
        let wall = start.elapsed();
        let (client_cpu, redis_cpu) = (own.cpu_since(&client)?, self.redis.processes.cpu_since(&redis)?);
        let checks = load.checks / load.callers * load.callers;
        Ok(Round { checks, admitted, wall, client_cpu, redis_cpu })
    }
}

/// The clients of one caller in one round.
struct Clients {
    caller: u64,
    seed: u64,
    random: Random,
}

impl Clients {
    /// Returns the client of this caller's check number `n`.
    fn next(&mut self, load: &Load, n: u64) -> u64 {
        if load.new_clients {
            (self.seed << 40) + (self.caller << 24) + n
        } else {
            self.random.below(load.clients)
        }
    }
}

/// Runs one caller and returns the number of admitted checks.
async fn call(
    target: Target,
    store: Arc<RedisStore>,
    multi_incrby: MultiIncrby,
    load: Load,
    mut clients: Clients,
) -> anyhow::Result<u64> {
    let limit = &load.limit;
    let requests = limit.rates.first().context("the limit has no rate")?.requests.get();
    let mut admitted = 0;
    for n in 0..load.checks / load.callers {
        let client = clients.next(&load, n);
        admitted += u64::from(match target {
            Target::Store | Target::Functions => store.check(load.check(client)).await?.admitted,
            Target::MultiIncrby => {
                multi_incrby.check(&limit.scope, key(client), requests, limit.rates.len()).await?
            }
        });
    }
    Ok(admitted)
}

/// Returns a value of both sides in each round.
pub(super) fn values(rounds: &[(Round, Round)], value: impl Fn(&Round) -> f64) -> Vec<(f64, f64)> {
    rounds.iter().map(|(ours, peers)| (value(ours), value(peers))).collect()
}

/// Verifies that both sides admitted every check.
pub(super) fn expect_all_admitted(verification: &mut Verification, rounds: &[(Round, Round)]) {
    for (side, rounds) in [
        ("Sluice", rounds.iter().map(|both| &both.0).collect::<Vec<_>>()),
        ("peer", rounds.iter().map(|both| &both.1).collect()),
    ] {
        let admitted = rounds.iter().map(|round| round.admitted).sum();
        let checks = rounds.iter().map(|round| round.checks).sum();
        verification.expect(&format!("{side}: admitted while measured"), admitted, checks);
    }
}
