//! A child process with one caller, like the sidecar of a quiet pod.

use std::sync::Arc;

use anyhow::{Context as _, bail};
use redis::Value;
use redis::aio::MultiplexedConnection;
use sluice_store::{LimitSpec, RedisStore, Store as _};

use crate::peers::multi_incrby::MultiIncrby;
use crate::support::child::serve;
use crate::support::keys::{UNREACHABLE, check, key, limit};
use crate::support::random::Random;
use crate::support::redis_server::{connect, patient_store};

pub(super) const PROCESSES: u64 = 64;
pub(super) const CLIENTS: u64 = 100_000;
pub(super) const SCOPE: &str = "bench/policy/limit";

/// Serves the command `MODE CHECKS ROUND`, where MODE is `store`, `multi` (MULTI/INCRBY) or `ping`. Answers
/// with the number of admitted checks.
pub(crate) fn run(address: &str, number: &str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let number: u64 = number.parse()?;
    let mut caller = runtime.block_on(Caller::connect(address))?;
    serve(|line| {
        let words: Vec<&str> = line.split(' ').collect();
        let [mode, checks, round] = words[..] else { bail!("unexpected command {line:?}") };
        let random = Random::new(round.parse::<u64>()? * PROCESSES + number + 1);
        Ok(runtime.block_on(caller.call(mode, checks.parse()?, random))?.to_string())
    })
}

struct Caller {
    limit: Arc<LimitSpec>,
    store: Arc<RedisStore>,
    connection: MultiplexedConnection,
    multi_incrby: MultiIncrby,
}

impl Caller {
    async fn connect(address: &str) -> anyhow::Result<Self> {
        let url = format!("redis://{address}");
        let connection = connect(&url).await?;
        Ok(Self {
            limit: limit(SCOPE, UNREACHABLE)?,
            store: patient_store(&url).await?.into(),
            multi_incrby: MultiIncrby::new(connection.clone()),
            connection,
        })
    }

    /// Makes a number of calls, and returns how many of them were admitted.
    async fn call(&mut self, mode: &str, calls: u64, mut random: Random) -> anyhow::Result<u64> {
        let requests = self.limit.rates.first().context("the limit has no rate")?.requests.get();
        let mut admitted = 0;
        for _ in 0..calls {
            let key = key(random.below(CLIENTS));
            admitted += u64::from(match mode {
                "store" => self.store.check(check(&self.limit, key)).await?.admitted,
                "multi" => self.multi_incrby.check(SCOPE, key, requests, 1).await?,
                _ => {
                    redis::cmd("PING").query_async::<Value>(&mut self.connection).await?;
                    false
                }
            });
        }
        Ok(admitted)
    }
}
