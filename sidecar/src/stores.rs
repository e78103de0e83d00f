//! Which store counts: chosen by whoever publishes, started once, and kept for as long as the choice stays the same.
//!
//! A store that takes the place of another is waited for: until it has connected, or failed to, the old one counts.

use std::sync::Arc;
use std::time::Duration;

use rand::RngCore as _;
use sluice_config::KeySecret;
use sluice_config::message::{StoreAccess, StoreReport};
use sluice_store::redis::{ClientCertificate, OptionsError, Secret};
use sluice_store::{Clock, MemoryStore, RedisOptions, RedisStore, Store, StoreHealth};
use tokio::runtime::Handle;

use crate::counting::Counting;

/// The word for a store that is not configured, or not in a way that can be used.
pub(crate) const UNCONFIGURED: &str = "unconfigured";
/// How many keys a memory store holds.
const MEMORY_KEYS: usize = 1 << 20;
/// Over how many tags a Redis store's keys are spread; all sidecars must agree.
const PARTITIONS: u16 = 64;

/// Where counters shall live.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreChoice {
    /// Nowhere: `onStoreFailure` decides every request. With `Share` each is counted in this process for good.
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

/// How long a store may take to connect before it takes the place of another all the same.
const HAND_OVER: Duration = Duration::from_secs(5);
/// How often it is looked at meanwhile.
const LOOK: Duration = Duration::from_millis(20);

/// Where requests are counted, with the secret that keys are hashed with.
type Keyed = (Counting, KeySecret);

/// The store in use, and the one that will be.
#[derive(Debug)]
pub(crate) struct Stores {
    /// Where a store's task runs.
    runtime: Handle,
    clock: Clock,
    in_use: Option<Chosen>,
    coming: Option<Chosen>,
    current: CurrentStore,
}

/// A choice and what came of it.
#[derive(Debug)]
struct Chosen {
    choice: StoreChoice,
    started: Keyed,
}

impl Chosen {
    fn store(&self) -> Option<&Arc<Store>> {
        self.started.0.store()
    }
}

/// What metrics look at.
pub(crate) type CurrentStore = Arc<arc_swap::ArcSwapOption<Counting>>;

impl Stores {
    pub(crate) fn new(runtime: Handle, clock: Clock, current: CurrentStore) -> Self {
        Self { runtime, clock, in_use: None, coming: None, current }
    }

    /// The store of a choice: the running one if the choice is the same. If it is another, and has still to connect,
    /// the one in use stays in use; `coming` is told which one to wait for.
    pub(crate) fn choose(
        &mut self,
        choice: &StoreChoice,
        coming: impl FnOnce(&Handle, Arc<Store>),
    ) -> Option<Keyed> {
        let is = |chosen: &Option<Chosen>| chosen.as_ref().is_some_and(|chosen| chosen.choice == *choice);
        if is(&self.in_use) {
            self.coming = None;
        } else if !is(&self.coming) {
            let next = Chosen { choice: choice.clone(), started: self.start(choice) };
            let waited_for = next.store().filter(|store| store.health() == StoreHealth::Starting).cloned();
            match waited_for.filter(|_| self.in_use.as_ref().is_some_and(|chosen| chosen.store().is_some())) {
                Some(store) => {
                    self.coming = Some(next);
                    coming(&self.runtime, store);
                }
                None => self.use_now(next),
            }
        }
        self.in_use.as_ref().map(|chosen| chosen.started.clone())
    }

    /// Puts a store that was waited for into use; `None` if another choice has been made since.
    pub(crate) fn hand_over(&mut self, store: &Arc<Store>) -> Option<Keyed> {
        let same = |chosen: &mut Chosen| chosen.store().is_some_and(|coming| Arc::ptr_eq(coming, store));
        let next = self.coming.take_if(same)?;
        let started = next.started.clone();
        self.use_now(next);
        Some(started)
    }

    /// Where requests are counted now, and where they will be.
    pub(crate) fn all(&self) -> Vec<Counting> {
        self.in_use.iter().chain(&self.coming).map(|chosen| chosen.started.0.clone()).collect()
    }

    fn use_now(&mut self, next: Chosen) {
        self.current.store(Some(Arc::new(next.started.0.clone())));
        self.coming = None;
        // Requests that are being checked hold the old store until they have their answers.
        if let Some(Chosen { started: (old, _), .. }) = self.in_use.replace(next) {
            // All but this one go with the last request that asks.
            self.runtime.spawn(async move { old.leave(1).await });
        }
    }

    pub(crate) fn state(&self) -> StoreState {
        match &self.in_use {
            None => StoreState::Unchosen,
            Some(chosen) => {
                chosen.store().map_or(StoreState::Unconfigured, |store| StoreState::Is(store.health()))
            }
        }
    }

    fn start(&self, choice: &StoreChoice) -> Keyed {
        let own_secret = || {
            let mut secret = [0; 16];
            rand::rng().fill_bytes(&mut secret);
            KeySecret::new(secret)
        };
        let _on_it = self.runtime.enter();
        // Nobody is asked, and so nobody waited for.
        let nowhere = || (Counting::layered(None, Duration::ZERO), own_secret());
        match choice {
            StoreChoice::Unconfigured => nowhere(),
            StoreChoice::Memory => {
                let store = MemoryStore::new(MEMORY_KEYS, self.clock.clone());
                (Counting::Memory(Arc::new(Store::Memory(store))), own_secret())
            }
            StoreChoice::Access(access) => match options(access).and_then(RedisStore::start) {
                Ok(store) => {
                    let store = Some(Arc::new(Store::Redis(store)));
                    let budget = Duration::from_millis(access.latency_budget_millis);
                    (Counting::layered(store, budget), access.key_secret.clone())
                }
                Err(error) => {
                    tracing::error!(%error, "the store cannot be used");
                    nowhere()
                }
            },
        }
    }
}

/// Waits until a store has connected or failed to, or has had its time.
pub(crate) async fn started(store: &Store) {
    let looking = async {
        while store.health() == StoreHealth::Starting {
            tokio::time::sleep(LOOK).await;
        }
    };
    let _ = tokio::time::timeout(HAND_OVER, looking).await;
}

fn options(access: &StoreAccess) -> Result<RedisOptions, OptionsError> {
    // Nothing may be left out.
    let StoreAccess {
        url,
        username,
        password,
        sentinel_username,
        sentinel_password,
        ca,
        client,
        latency_budget_millis,
        key_secret: _,
        prefix,
    } = access;
    let secret = |text: &Option<String>| text.clone().map(Secret::new);
    let options = RedisOptions::from_url(url)?
        .with_user(username.clone(), secret(password))?
        .with_sentinel_user(sentinel_username.clone(), secret(sentinel_password))?;
    Ok(RedisOptions {
        ca_pem: ca.clone().map(String::into_bytes),
        client_certificate: client.as_ref().map(|client| ClientCertificate {
            certificate_pem: client.certificate.clone().into_bytes(),
            key_pem: client.key.clone().into_bytes(),
        }),
        latency_budget: Duration::from_millis(*latency_budget_millis),
        prefix: prefix.clone(),
        partitions: PARTITIONS,
        ..options
    })
}
