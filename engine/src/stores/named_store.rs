//! The store of one name: the one in use, and the one that will replace it.
//!
//! A store that replaces another is given time to connect, and the old one counts until then. If keys mean
//! the same counters in both, because only the way to the store has changed, the new limiter continues with
//! the local counts.

use std::sync::Arc;
use std::time::Duration;

use rand::RngCore as _;
use sluice_config::KeySecret;
use sluice_config::message::StoreFindings;
use sluice_config::store_access::StoreChoice;
use sluice_store::redis::OptionsError;
use sluice_store::{
    Clock, Eviction, Limiter, LimiterOptions, MemoryStore, RedisStore, Store as _, StoreFault, StoreHealth,
};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::stores::limiter_handle::LimiterHandle;
use crate::stores::store_state::StoreState;

/// Time that a store has to connect. Afterwards it replaces the other one in any case.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the health of a connecting store is read.
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);
/// Time that a replaced limiter waits for its last users.
const LAST_USERS_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a limiter then has to return its leased quota and to flush its local usage.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A handle to the limiter, with the secret that its keys are hashed with.
pub(crate) type LimiterAndSecret = (LimiterHandle, KeySecret);

/// Everything that stores are started with.
#[derive(Debug)]
pub(super) struct StoreRuntime {
    /// The runtime of the stores' tasks.
    pub(super) runtime: Handle,
    pub(super) clock: Clock,
    /// Number of keys that the local quota may count.
    pub(super) local_quota_keys: usize,
    pub(super) memory_keys: usize,
    /// Tasks that close replaced limiters.
    pub(super) closing: TaskTracker,
}

/// The store of one name.
#[derive(Debug, Default)]
pub(super) struct NamedStore {
    in_use: Option<StoreInUse>,
    starting: Option<StartedStore>,
}

/// A store that has been started from a choice.
#[derive(Debug, Clone)]
pub(crate) struct StartedStore {
    choice: StoreChoice,
    /// `None` if the choice has no store, or one that cannot be used.
    redis: Option<Arc<RedisStore>>,
    secret: KeySecret,
}

/// The store that counts.
#[derive(Debug)]
struct StoreInUse {
    choice: StoreChoice,
    secret: KeySecret,
    limiter: Arc<Limiter>,
    /// Counts the handles of the limiter.
    users: TaskTracker,
}

impl StartedStore {
    /// Waits until the store has connected or has failed to, but not longer than [`CONNECT_TIMEOUT`].
    pub(crate) async fn ready(&self) {
        let Some(store) = &self.redis else { return };
        let connecting = async {
            while store.health() == StoreHealth::Starting {
                tokio::time::sleep(CONNECT_INTERVAL).await;
            }
        };
        let _ = tokio::time::timeout(CONNECT_TIMEOUT, connecting).await;
    }

    fn is_connecting(&self) -> bool {
        self.redis.as_ref().is_some_and(|store| store.health() == StoreHealth::Starting)
    }

    fn same(&self, other: &Self) -> bool {
        match (&self.redis, &other.redis) {
            (Some(one), Some(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

impl StoreInUse {
    /// Reports whether checks are counted in a store, in memory or in Redis.
    fn counts(&self) -> bool {
        self.limiter.health() != StoreHealth::Failing(StoreFault::Unconfigured)
    }
}

impl NamedStore {
    /// Starts the store of a choice if it differs from the present one. While the new store connects, the old one
    /// stays in use, and the new one is returned: call [`NamedStore::switch`] when it is ready.
    pub(super) fn choose(&mut self, choice: &StoreChoice, runtime: &StoreRuntime) -> Option<StartedStore> {
        if self.in_use.as_ref().is_some_and(|used| used.choice == *choice) {
            self.starting = None;
        } else if self.starting.as_ref().is_none_or(|starting| starting.choice != *choice) {
            let next = runtime.start(choice);
            if next.is_connecting() && self.in_use.as_ref().is_some_and(StoreInUse::counts) {
                self.starting = Some(next.clone());
                return Some(next);
            }
            self.replace(next, runtime);
        }
        None
    }

    /// Switches to a store that has been waited for. Returns `false` if another choice has been made since.
    pub(super) fn switch(&mut self, started: &StartedStore, runtime: &StoreRuntime) -> bool {
        let next = self.starting.take_if(|starting| starting.same(started));
        next.map(|next| self.replace(next, runtime)).is_some()
    }

    fn replace(&mut self, next: StartedStore, runtime: &StoreRuntime) {
        let StartedStore { choice, redis, secret } = next;
        let old = self.in_use.take();
        let limiter = {
            let key_space = choice.key_space();
            let predecessor =
                old.as_ref().filter(|old| key_space.is_some() && old.choice.key_space() == key_space);
            runtime.limiter(&choice, redis, predecessor.map(|old| &*old.limiter))
        };
        self.starting = None;
        self.in_use = Some(StoreInUse { choice, secret, limiter, users: TaskTracker::new() });
        if let Some(old) = old {
            runtime.retire(old);
        }
    }

    /// Closes the limiter after its last user.
    pub(super) fn retire(self, runtime: &StoreRuntime) {
        if let Some(old) = self.in_use {
            runtime.retire(old);
        }
    }

    pub(super) fn limiter_and_secret(&self) -> Option<LimiterAndSecret> {
        let StoreInUse { limiter, users, secret, .. } = self.in_use.as_ref()?;
        Some((LimiterHandle::new(limiter.clone(), users), secret.clone()))
    }

    pub(super) fn limiter(&self) -> Option<&Arc<Limiter>> {
        self.in_use.as_ref().map(|used| &used.limiter)
    }

    pub(super) fn state(&self) -> StoreState {
        let Some(limiter) = self.limiter() else { return StoreState::Unchosen };
        match limiter.health() {
            StoreHealth::Failing(StoreFault::Unconfigured) => StoreState::Unconfigured,
            health => StoreState::Is(health, limiter.fault_cause(), findings(limiter)),
        }
    }
}

/// Returns what a limiter has found out about its store. Memory evicts nothing.
fn findings(limiter: &Limiter) -> StoreFindings {
    StoreFindings {
        lost_counters: limiter.has_lost_counters(),
        eviction: limiter.redis().map_or(Eviction::Never, |store| store.eviction()),
    }
}

impl StoreRuntime {
    fn limiter(
        &self,
        choice: &StoreChoice,
        redis: Option<Arc<RedisStore>>,
        predecessor: Option<&Limiter>,
    ) -> Arc<Limiter> {
        let _runtime = self.runtime.enter();
        let options = |latency_budget| LimiterOptions {
            latency_budget,
            local_quota_keys: self.local_quota_keys,
            ..LimiterOptions::default()
        };
        Arc::new(match (choice, redis) {
            (StoreChoice::Memory, _) => {
                Limiter::in_memory(MemoryStore::new(self.memory_keys, self.clock.clone()))
            }
            (StoreChoice::Access(access), Some(store)) => {
                Limiter::in_redis(store, &options(access.redis.latency_budget), predecessor)
            }
            // There is no call to wait for.
            (StoreChoice::Access(_) | StoreChoice::Unconfigured, _) => {
                Limiter::unconfigured(&options(Duration::ZERO), predecessor)
            }
        })
    }

    fn start(&self, choice: &StoreChoice) -> StartedStore {
        let _runtime = self.runtime.enter();
        let (redis, secret) = match choice {
            StoreChoice::Unconfigured | StoreChoice::Memory => {
                let mut secret = [0; 16];
                rand::rng().fill_bytes(&mut secret);
                (None, KeySecret::new(secret))
            }
            StoreChoice::Access(access) => {
                let store = RedisStore::start(access.redis.clone());
                let log = |error: &OptionsError| tracing::error!(%error, "the store cannot be used");
                (store.inspect_err(log).ok().map(Arc::new), access.key_secret.clone())
            }
        };
        StartedStore { choice: choice.clone(), redis, secret }
    }

    fn retire(&self, old: StoreInUse) {
        let StoreInUse { limiter, users, .. } = old;
        users.close();
        self.closing.spawn_on(
            async move {
                let closing = async {
                    let _ = tokio::time::timeout(LAST_USERS_TIMEOUT, users.wait()).await;
                    limiter.close().await;
                };
                close_in_time(closing).await;
            },
            &self.runtime,
        );
    }
}

/// Closes a limiter, within [`CLOSE_TIMEOUT`].
pub(super) async fn close_in_time(closing: impl Future<Output = ()>) {
    if tokio::time::timeout(CLOSE_TIMEOUT, closing).await.is_err() {
        tracing::warn!("not all leased quota could be returned: the rest expires with its window");
    }
}
