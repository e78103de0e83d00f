//! The store in use: started once, and kept while the choice stays the same.
//!
//! A store that replaces another is given time to connect, and the old one counts until then. If keys mean
//! the same counters in both, because only the way to the store has changed, the new limiter continues with
//! the local counts.

use std::sync::Arc;
use std::time::Duration;

use rand::RngCore as _;
use sluice_config::KeySecret;
use sluice_config::store_access::StoreChoice;
use sluice_store::redis::OptionsError;
use sluice_store::{Clock, Limiter, LimiterOptions, MemoryStore, RedisStore, StoreFault, StoreHealth};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::capacity;
use crate::config::limiter_handle::LimiterHandle;
use crate::config::store_state::StoreState;

/// Number of keys that a memory store holds.
const MEMORY_KEYS: usize = 1 << 20;
/// Time that a store has to connect. Afterwards it replaces the other one in any case.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Interval at which the health of a connecting store is read.
const CONNECT_INTERVAL: Duration = Duration::from_millis(20);
/// Time that a replaced limiter waits for its last users.
const LAST_USERS_TIMEOUT: Duration = Duration::from_secs(1);
/// Time that a limiter then has to return its leased quota and to flush its local usage.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// The limiter in use, for metrics.
pub(crate) type CurrentLimiter = Arc<arc_swap::ArcSwapOption<Limiter>>;

/// A handle to the limiter, with the secret that its keys are hashed with.
type LimiterAndSecret = (LimiterHandle, KeySecret);

/// The store in use, and the one that will replace it.
#[derive(Debug)]
pub(crate) struct Stores {
    /// The runtime of the stores' tasks.
    runtime: Handle,
    clock: Clock,
    in_use: Option<StoreInUse>,
    starting: Option<StartedStore>,
    /// Tasks that close replaced limiters.
    closing: TaskTracker,
    current: CurrentLimiter,
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
    fn limiter_and_secret(&self) -> LimiterAndSecret {
        (LimiterHandle::new(self.limiter.clone(), &self.users), self.secret.clone())
    }

    /// Reports whether checks are counted in a store, in memory or in Redis.
    fn counts(&self) -> bool {
        self.limiter.health() != StoreHealth::Failing(StoreFault::Unconfigured)
    }
}

impl Stores {
    pub(crate) fn new(runtime: Handle, clock: Clock, current: CurrentLimiter) -> Self {
        Self { runtime, clock, in_use: None, starting: None, closing: TaskTracker::new(), current }
    }

    /// Returns the limiter of a choice, and starts its store if the choice has changed. While the new store
    /// connects, the old one stays in use, and `wait_for` receives the new one; call [`Stores::switch`] when
    /// it is ready.
    pub(crate) fn choose(
        &mut self,
        choice: &StoreChoice,
        wait_for: impl FnOnce(&Handle, StartedStore),
    ) -> Option<LimiterAndSecret> {
        if self.in_use.as_ref().is_some_and(|used| used.choice == *choice) {
            self.starting = None;
        } else if self.starting.as_ref().is_none_or(|starting| starting.choice != *choice) {
            let next = self.start(choice);
            if next.is_connecting() && self.in_use.as_ref().is_some_and(StoreInUse::counts) {
                self.starting = Some(next.clone());
                wait_for(&self.runtime, next);
            } else {
                self.replace(next);
            }
        }
        self.in_use.as_ref().map(StoreInUse::limiter_and_secret)
    }

    /// Switches to a store that has been waited for; `None` if another choice has been made since.
    pub(crate) fn switch(&mut self, started: &StartedStore) -> Option<LimiterAndSecret> {
        let next = self.starting.take_if(|starting| starting.same(started))?;
        self.replace(next);
        self.in_use.as_ref().map(StoreInUse::limiter_and_secret)
    }

    fn replace(&mut self, next: StartedStore) {
        let StartedStore { choice, redis, secret } = next;
        let old = self.in_use.take();
        let limiter = {
            let key_space = choice.key_space();
            let predecessor =
                old.as_ref().filter(|old| key_space.is_some() && old.choice.key_space() == key_space);
            self.limiter(&choice, redis, predecessor.map(|old| &*old.limiter))
        };
        self.current.store(Some(limiter.clone()));
        self.starting = None;
        self.in_use = Some(StoreInUse { choice, secret, limiter, users: TaskTracker::new() });
        if let Some(StoreInUse { limiter, users, .. }) = old {
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

    fn limiter(
        &self,
        choice: &StoreChoice,
        redis: Option<Arc<RedisStore>>,
        predecessor: Option<&Limiter>,
    ) -> Arc<Limiter> {
        let _runtime = self.runtime.enter();
        let options = |latency_budget| LimiterOptions {
            latency_budget,
            local_quota_keys: capacity::local_keys(),
            ..LimiterOptions::default()
        };
        Arc::new(match (choice, redis) {
            (StoreChoice::Memory, _) => Limiter::in_memory(MemoryStore::new(MEMORY_KEYS, self.clock.clone())),
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

    pub(crate) fn state(&self) -> StoreState {
        match self.in_use.as_ref().map(|used| used.limiter.health()) {
            None => StoreState::Unchosen,
            Some(StoreHealth::Failing(StoreFault::Unconfigured)) => StoreState::Unconfigured,
            Some(health) => StoreState::Is(health),
        }
    }

    /// Closes the limiter in use, and waits for replaced ones. No request may follow.
    pub(crate) fn close(&self) -> impl Future<Output = ()> + Send + use<> {
        let limiter = self.in_use.as_ref().map(|used| used.limiter.clone());
        let replaced = self.closing.clone();
        replaced.close();
        async move {
            if let Some(limiter) = limiter {
                close_in_time(limiter.close()).await;
            }
            replaced.wait().await;
        }
    }
}

/// Closes a limiter, within [`CLOSE_TIMEOUT`].
async fn close_in_time(closing: impl Future<Output = ()>) {
    if tokio::time::timeout(CLOSE_TIMEOUT, closing).await.is_err() {
        tracing::warn!("not all leased quota could be returned: the rest expires with its window");
    }
}

#[cfg(test)]
mod tests;
