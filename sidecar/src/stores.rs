//! Which store counts: chosen by whoever publishes, started once, and kept for as long as the choice stays the same.

use std::sync::Arc;
use std::time::Duration;

use rand::RngCore as _;
use sluice_config::KeySecret;
use sluice_config::message::{StoreAccess, StoreReport};
use sluice_store::redis::Secret;
use sluice_store::{Clock, MemoryStore, RedisOptions, RedisStore, Store, StoreHealth};
use tokio::runtime::Handle;

/// The word for a store that is not configured, or not in a way that can be used.
pub(crate) const UNCONFIGURED: &str = "unconfigured";
/// How many keys a memory store holds.
const MEMORY_KEYS: usize = 1 << 20;
/// Over how many tags a Redis store's keys are spread; all sidecars must agree.
const PARTITIONS: u16 = 64;

/// Where counters shall live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// Nowhere: `onStoreFailure` decides every request.
    Unconfigured,
    /// In this process.
    Memory,
    /// Where the operator, or a URL, says.
    Access(Box<StoreAccess>),
}

impl StoreChoice {
    /// What the operator's word means. The scheme `memory:` is this process.
    #[must_use]
    pub fn new(access: Option<StoreAccess>) -> Self {
        match access {
            None => Self::Unconfigured,
            Some(access) if access.url.starts_with("memory:") => Self::Memory,
            Some(access) => Self::Access(Box::new(access)),
        }
    }
}

/// How the store is doing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum StoreState {
    /// Nobody has chosen one yet.
    Unchosen,
    /// There is none that could be used.
    Unconfigured,
    /// In the store's own words.
    Is(StoreHealth),
}

impl StoreState {
    /// The same in a report.
    #[must_use]
    pub fn report(self) -> StoreReport {
        match self {
            Self::Unchosen | Self::Is(StoreHealth::Starting) => StoreReport::Unknown,
            Self::Unconfigured => StoreReport::Failing { fault: UNCONFIGURED.into() },
            Self::Is(StoreHealth::Healthy) => StoreReport::Healthy,
            Self::Is(StoreHealth::Failing(fault)) => StoreReport::Failing { fault: fault.as_str().into() },
        }
    }
}

/// The store in use.
#[derive(Debug)]
pub(crate) struct Stores {
    /// Where a store's task runs.
    runtime: Handle,
    clock: Clock,
    choice: Option<StoreChoice>,
    started: Option<(Arc<Store>, KeySecret)>,
    current: CurrentStore,
}

/// What metrics look at.
pub(crate) type CurrentStore = Arc<arc_swap::ArcSwapOption<Store>>;

impl Stores {
    pub(crate) fn new(runtime: Handle, clock: Clock, current: CurrentStore) -> Self {
        Self { runtime, clock, choice: None, started: None, current }
    }

    /// The store of a choice: the running one if the choice is the same.
    pub(crate) fn choose(&mut self, choice: &StoreChoice) -> Option<(Arc<Store>, KeySecret)> {
        if self.choice.as_ref() != Some(choice) {
            self.started = self.start(choice);
            self.choice = Some(choice.clone());
            self.current.store(self.started.as_ref().map(|(store, _)| store.clone()));
        }
        self.started.clone()
    }

    pub(crate) fn state(&self) -> StoreState {
        match (&self.choice, &self.started) {
            (None, _) => StoreState::Unchosen,
            (Some(_), None) => StoreState::Unconfigured,
            (Some(_), Some((store, _))) => StoreState::Is(store.health()),
        }
    }

    fn start(&self, choice: &StoreChoice) -> Option<(Arc<Store>, KeySecret)> {
        match choice {
            StoreChoice::Unconfigured => None,
            StoreChoice::Memory => {
                let mut secret = [0; 16];
                rand::rng().fill_bytes(&mut secret);
                let store = MemoryStore::new(MEMORY_KEYS, self.clock.clone());
                Some((Arc::new(Store::Memory(store)), KeySecret::new(secret)))
            }
            StoreChoice::Access(access) => {
                let _on_it = self.runtime.enter();
                match RedisStore::start(options(access)) {
                    Ok(store) => Some((Arc::new(Store::Redis(store)), access.key_secret.clone())),
                    Err(error) => {
                        tracing::error!(%error, "the store cannot be used");
                        None
                    }
                }
            }
        }
    }
}

fn options(access: &StoreAccess) -> RedisOptions {
    RedisOptions {
        url: access.url.clone(),
        username: access.username.clone(),
        password: access.password.clone().map(Secret::new),
        ca_pem: access.ca.clone().map(String::into_bytes),
        latency_budget: Duration::from_millis(access.latency_budget_millis),
        prefix: access.prefix.clone(),
        partitions: PARTITIONS,
    }
}
