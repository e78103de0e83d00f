//! Which store counts: chosen by whoever publishes, started once, and kept for as long as the choice stays the same.
//!
//! A store that takes the place of another is waited for: until it has connected, or failed to, the old one counts. Where
//! only the way to the store has changed and not what keys mean, what was counted in this process goes over to the new one.

use std::sync::{Arc, Weak};
use std::time::Duration;

use rand::RngCore as _;
use sluice_config::KeySecret;
use sluice_config::message::{StoreAccess, StoreReport};
use sluice_store::layers::Limiter;
use sluice_store::redis::{ClientCertificate, OptionsError, Secret};
use sluice_store::{Clock, MemoryStore, RedisOptions, RedisStore, Store, StoreHealth};
use tokio::runtime::Handle;

use crate::limit::check::{Backing, Counting};

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
    in_use: Option<InUse>,
    coming: Option<Started>,
    /// Those whose place was taken, for as long as they are asked or give back.
    leaving: Vec<Weak<Limiter<Backing>>>,
    current: CurrentStore,
}

/// A choice and what came of it: no store if there is none that could be used.
#[derive(Debug)]
struct Started {
    choice: StoreChoice,
    store: Option<Arc<Store>>,
    secret: KeySecret,
}

/// One that counts.
#[derive(Debug)]
struct InUse {
    choice: StoreChoice,
    counting: Keyed,
}

impl StoreChoice {
    /// What makes keys mean the same counters.
    fn keys(&self) -> Option<(&KeySecret, &str)> {
        match self {
            Self::Access(access) => Some((&access.key_secret, &access.prefix)),
            Self::Unconfigured | Self::Memory => None,
        }
    }
}

/// What metrics look at.
pub(crate) type CurrentStore = Arc<arc_swap::ArcSwapOption<Counting>>;

impl Stores {
    pub(crate) fn new(runtime: Handle, clock: Clock, current: CurrentStore) -> Self {
        Self { runtime, clock, in_use: None, coming: None, leaving: Vec::new(), current }
    }

    /// The store of a choice: the running one if the choice is the same. If it is another, and has still to connect,
    /// the one in use stays in use; `coming` is told which one to wait for.
    pub(crate) fn choose(
        &mut self,
        choice: &StoreChoice,
        coming: impl FnOnce(&Handle, Arc<Store>),
    ) -> Option<Keyed> {
        if self.in_use.as_ref().is_some_and(|used| used.choice == *choice) {
            self.coming = None;
        } else if self.coming.as_ref().is_none_or(|coming| coming.choice != *choice) {
            let next = self.start(choice);
            let waited_for = next.store.clone().filter(|store| store.health() == StoreHealth::Starting);
            let counts = self.in_use.as_ref().is_some_and(|used| used.counting.0.store().is_some());
            match waited_for.filter(|_| counts) {
                Some(store) => {
                    self.coming = Some(next);
                    coming(&self.runtime, store);
                }
                None => self.use_now(next),
            }
        }
        self.in_use.as_ref().map(|used| used.counting.clone())
    }

    /// Puts a store that was waited for into use; `None` if another choice has been made since.
    pub(crate) fn hand_over(&mut self, store: &Arc<Store>) -> Option<Keyed> {
        let same =
            |coming: &mut Started| coming.store.as_ref().is_some_and(|coming| Arc::ptr_eq(coming, store));
        let next = self.coming.take_if(same)?;
        self.use_now(next);
        self.in_use.as_ref().map(|used| used.counting.clone())
    }

    /// Where requests are counted now, and where they were and what was taken has not all been given back yet.
    pub(crate) fn all(&self) -> Vec<Counting> {
        let leaving = self.leaving.iter().filter_map(Weak::upgrade).map(Counting::Layered);
        self.in_use.iter().map(|used| used.counting.0.clone()).chain(leaving).collect()
    }

    fn use_now(&mut self, next: Started) {
        let Started { choice, store, secret } = next;
        let keys = choice.keys();
        let old = self.in_use.take();
        let same = old.as_ref().filter(|old| keys.is_some() && old.choice.keys() == keys);
        let _on_it = self.runtime.enter();
        let counting = match (&choice, store) {
            (StoreChoice::Memory, Some(store)) => Counting::Memory(store),
            (_, store) => {
                let budget = match &choice {
                    StoreChoice::Access(access) if store.is_some() => access.latency_budget_millis,
                    // Nobody is asked, and so nobody waited for.
                    _ => 0,
                };
                let same = same.and_then(|old| old.counting.0.limiter());
                Counting::layered(store, Duration::from_millis(budget), same)
            }
        };
        self.current.store(Some(Arc::new(counting.clone())));
        self.coming = None;
        self.in_use = Some(InUse { choice, counting: (counting, secret) });
        self.leaving.retain(|limiter| limiter.strong_count() > 0);
        // Requests that are being checked hold the old store until they have their answers.
        if let Some(InUse { counting: (old, _), .. }) = old {
            self.leaving.extend(old.limiter().map(Arc::downgrade));
            // All but this one go with the last request that asks.
            self.runtime.spawn(async move { old.leave(1).await });
        }
    }

    pub(crate) fn state(&self) -> StoreState {
        match &self.in_use {
            None => StoreState::Unchosen,
            Some(used) => {
                let store = used.counting.0.store();
                store.map_or(StoreState::Unconfigured, |store| StoreState::Is(store.health()))
            }
        }
    }

    fn start(&self, choice: &StoreChoice) -> Started {
        let own_secret = || {
            let mut secret = [0; 16];
            rand::rng().fill_bytes(&mut secret);
            KeySecret::new(secret)
        };
        let _on_it = self.runtime.enter();
        let (store, secret) = match choice {
            StoreChoice::Unconfigured => (None, own_secret()),
            StoreChoice::Memory => {
                let store = MemoryStore::new(MEMORY_KEYS, self.clock.clone());
                (Some(Store::Memory(store)), own_secret())
            }
            StoreChoice::Access(access) => {
                let store = options(access).and_then(RedisStore::start);
                let failed = |error: &OptionsError| tracing::error!(%error, "the store cannot be used");
                (store.inspect_err(failed).ok().map(Store::Redis), access.key_secret.clone())
            }
        };
        Started { choice: choice.clone(), store: store.map(Arc::new), secret }
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

#[cfg(test)]
mod tests {
    use sluice_limiter::{Algorithm, MAX_PERIOD_MS, Period, Rate, Requests};
    use sluice_store::layers::{Consistency, LimitPlan, OnStoreFailure, PlannedCounter, Replicas};
    use sluice_store::{KeyHash, LimitSpec};
    use smallvec::smallvec;

    use super::*;
    use crate::limit::check::Question;

    const NUMBER: u64 = 10;

    /// A Redis that is not there.
    fn access(change: impl FnOnce(&mut StoreAccess)) -> StoreChoice {
        let access = serde_json::json!({
            "url": "redis://127.0.0.1:1", "latencyBudgetMillis": 1_000,
            "keySecret": "AAAAAAAAAAAAAAAAAAAAAA==", "prefix": "sluice:",
        });
        let mut access = serde_json::from_value(access).unwrap();
        change(&mut access);
        StoreChoice::new(Some(access))
    }

    fn question(consistency: Consistency) -> Question {
        let (number, period) = (Requests::new(NUMBER).unwrap(), Period::from_millis(MAX_PERIOD_MS).unwrap());
        let rate = Rate::new(number, period, Algorithm::FIXED_WINDOW).unwrap();
        let spec = Arc::new(LimitSpec::new(format!("n/p/{consistency:?}"), vec![rate]));
        let plan = LimitPlan::new(spec, consistency, OnStoreFailure::Share, false, Replicas::alone());
        Question::Layered(smallvec![PlannedCounter { limit: Arc::new(plan), key: KeyHash(7), cost: 1 }])
    }

    async fn admitted(counting: &Counting, question: &Question, times: u64) -> u64 {
        let mut admitted = 0;
        for _ in 0..times {
            admitted += u64::from(counting.ask(question.clone()).await.unwrap().answer.admitted);
        }
        admitted
    }

    /// Chooses, and waits until it counts.
    async fn counts(stores: &mut Stores, choice: &StoreChoice) -> Counting {
        let mut waited_for = None;
        let now = stores.choose(choice, |_, store| waited_for = Some(store));
        let then = match waited_for {
            None => now,
            Some(store) => {
                started(&store).await;
                stores.hand_over(&store)
            }
        };
        then.unwrap().0
    }

    #[tokio::test]
    async fn what_is_counted_here_goes_over_where_keys_stay_what_they_are() {
        let mut stores = Stores::new(Handle::current(), Clock::system(), CurrentStore::default());
        let questions = [question(Consistency::Local), question(Consistency::Strict)];
        let first = counts(&mut stores, &access(|_| {})).await;
        for question in &questions {
            assert_eq!(admitted(&first, question, 2).await, 2);
        }
        let same = [
            access(|access| access.password = Some("new".into())),
            access(|access| access.latency_budget_millis = 2_000),
            access(|access| access.url = "redis://127.0.0.1:2".into()),
            // Not to be used at all.
            access(|access| access.ca = Some("no certificate".into())),
            access(|_| {}),
        ];
        for choice in &same {
            let counting = counts(&mut stores, choice).await;
            for question in &questions {
                assert_eq!(admitted(&counting, question, 1).await, 1);
            }
        }
        for question in &questions {
            assert_eq!(admitted(&first, question, 1).await, 1, "one that was asked of the first");
        }
        let last = counts(&mut stores, &same[0]).await;
        let left = NUMBER - 2 - same.len() as u64 - 1;
        for question in &questions {
            assert_eq!(admitted(&last, question, NUMBER).await, left);
        }
        let others = [
            access(|access| access.prefix = "other:".into()),
            access(|access| access.key_secret = KeySecret::new([1; 16])),
            StoreChoice::Unconfigured,
            access(|_| {}),
        ];
        for choice in &others {
            let counting = counts(&mut stores, choice).await;
            for question in &questions {
                assert_eq!(admitted(&counting, question, 2 * NUMBER).await, NUMBER);
            }
        }
    }

    #[tokio::test]
    async fn an_old_store_is_left_too_for_as_long_as_it_is_asked() {
        let mut stores = Stores::new(Handle::current(), Clock::system(), CurrentStore::default());
        let old = counts(&mut stores, &access(|_| {})).await;
        counts(&mut stores, &access(|access| access.password = Some("new".into()))).await;
        assert_eq!(stores.all().len(), 2);
        drop(old);
        let gone = async {
            while stores.all().len() > 1 {
                tokio::time::sleep(LOOK).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), gone).await.unwrap();
    }
}
