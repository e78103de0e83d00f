//! The storages in Redis: the asynchronous one calls Redis for each check; the cached one decides from this
//! process's memory and writes to Redis once a second.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use limitador::counter::Counter;
use limitador::storage::redis::{AsyncRedisStorage, CachedRedisStorageBuilder};
use limitador::storage::{AsyncCounterStorage, Authorization};

use crate::limits::{counters, limit, to_anyhow};
use crate::random::Random;

/// A storage, and prepared counters of all clients.
pub(crate) struct Peer {
    storage: Arc<dyn AsyncCounterStorage>,
    prepared: Arc<[Vec<Counter>]>,
    /// Whether callers yield after each check. The cached storage holds the lock of a map across an await.
    /// tokio suspends a task there after 128 operations without a yield, and the next task that takes the
    /// lock blocks the thread forever. In a server, tasks wait for requests long before that.
    yields: bool,
}

impl Peer {
    pub(crate) async fn connect(kind: &str, url: &str, clients: u64, requests: u64) -> anyhow::Result<Self> {
        let storage: Arc<dyn AsyncCounterStorage> = match kind {
            "async" => Arc::new(AsyncRedisStorage::new(url).await?),
            "cached" => {
                let builder = CachedRedisStorageBuilder::new(url);
                Arc::new(builder.max_cached_counters(2 * clients as usize + 1_000).build().await?)
            }
            _ => bail!("expected async or cached, not {kind:?}"),
        };
        let limit = Arc::new(limit(requests)?);
        let prepared = (0..clients).map(|client| counters(&limit, client)).collect::<anyhow::Result<_>>()?;
        Ok(Self { storage, prepared, yields: kind == "cached" })
    }

    /// Runs `checks` in all: each caller waits for its response before it sends the next check.
    pub(crate) async fn run(&self, callers: u64, checks: u64, seed: u64) -> anyhow::Result<String> {
        let start = Instant::now();
        let tasks: Vec<_> = (0..callers)
            .map(|caller| {
                let random = Random::new(seed * callers + caller + 1);
                let (storage, prepared) = (self.storage.clone(), self.prepared.clone());
                tokio::spawn(call(storage, prepared, checks / callers, self.yields, random))
            })
            .collect();
        let mut admitted = 0;
        for task in tasks {
            admitted += task.await.context("a caller panicked")??;
        }
        Ok(format!("{} {admitted}", start.elapsed().as_nanos()))
    }
}

async fn call(
    storage: Arc<dyn AsyncCounterStorage>,
    prepared: Arc<[Vec<Counter>]>,
    checks: u64,
    yields: bool,
    mut random: Random,
) -> anyhow::Result<u64> {
    let mut admitted = 0;
    for _ in 0..checks {
        let mut counters = prepared[random.below(prepared.len() as u64) as usize].clone();
        let response = storage.check_and_update(&mut counters, 1).await.map_err(to_anyhow)?;
        admitted += u64::from(matches!(response, Authorization::Ok));
        if yields {
            tokio::task::yield_now().await;
        }
    }
    Ok(admitted)
}
