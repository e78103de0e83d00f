//! The Redis store: a single server, and a cluster.

use std::sync::Arc;

use sluice_store::{RedisOptions, RedisStore};

use super::Subject;
use crate::checks::{healthy, patient};
use crate::cluster::Cluster;
use crate::support::Redis;

/// Stores of several processes, and their servers.
struct Shared<T> {
    stores: Vec<Arc<RedisStore>>,
    partitions: u16,
    _servers: T,
}

impl<T> Shared<T> {
    async fn start(servers: T, url: &str, partitions: u16) -> Self {
        let options = RedisOptions { partitions, ..patient(url) };
        let stores: Vec<_> = (0..8).map(|_| Arc::new(RedisStore::start(options.clone()).unwrap())).collect();
        for store in &stores {
            healthy(store).await;
        }
        Self { stores, partitions, _servers: servers }
    }
}

impl<T> Subject for Shared<T> {
    type Store = RedisStore;

    fn clients(&self) -> &[Arc<RedisStore>] {
        &self.stores
    }

    fn partitions(&self) -> u64 {
        self.partitions.into()
    }
}

mod single {
    use super::*;

    async fn start() -> Shared<Redis> {
        let redis = Redis::start(&[]);
        let url = redis.url();
        Shared::start(redis, &url, 1).await
    }

    crate::contract::passes_the_contract!(start().await);
}

mod cluster {
    use super::*;

    async fn start() -> Shared<Cluster> {
        let cluster = Cluster::start(&[]);
        let url = cluster.url();
        Shared::start(cluster, &url, 4).await
    }

    crate::contract::passes_the_contract!(together start().await);
}
