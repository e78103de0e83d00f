//! Its storages in Redis: one asks Redis for each check, the other one decides from this process's memory and writes to
//! Redis once a second.

use std::sync::Arc;
use std::time::Instant;

use anyhow::{Context as _, bail};
use limitador::counter::Counter;
use limitador::storage::redis::{AsyncRedisStorage, CachedRedisStorageBuilder};
use limitador::storage::{AsyncCounterStorage, Authorization};

use crate::random::Random;
use crate::{counters, limit, words};

/// A storage, and the counters of all clients, ready to be asked for.
pub(crate) struct Peer {
    storage: Arc<dyn AsyncCounterStorage>,
    ready: Arc<[Vec<Counter>]>,
    /// The cached one holds a lock of a map across an await that tokio may suspend after 128 in a row, and whoever meets
    /// that lock then waits for ever. A server would have waited for a request by then.
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
            _ => bail!("{kind}: async or cached is expected"),
        };
        let limit = Arc::new(limit(requests)?);
        let ready = (0..clients).map(|client| counters(&limit, client)).collect::<anyhow::Result<_>>()?;
        Ok(Self { storage, ready, yields: kind == "cached" })
    }

    /// So many checks of all callers together, each of whom waits for its answer before it asks again.
    pub(crate) async fn run(&self, callers: u64, checks: u64, seed: u64) -> anyhow::Result<String> {
        let start = Instant::now();
        let tasks: Vec<_> = (0..callers)
            .map(|caller| {
                let random = Random::new(seed * callers + caller + 1);
                let (storage, ready) = (self.storage.clone(), self.ready.clone());
                tokio::spawn(call(storage, ready, checks / callers, self.yields, random))
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
    ready: Arc<[Vec<Counter>]>,
    checks: u64,
    yields: bool,
    mut random: Random,
) -> anyhow::Result<u64> {
    let mut admitted = 0;
    for _ in 0..checks {
        let mut counters = ready[random.below(ready.len() as u64) as usize].clone();
        let answer = storage.check_and_update(&mut counters, 1).await.map_err(words)?;
        admitted += u64::from(matches!(answer, Authorization::Ok));
        if yields {
            tokio::task::yield_now().await;
        }
    }
    Ok(admitted)
}
