//! The stores in use, by name: started once, and kept while the choice stays the same. A store that no policy uses
//! is closed.
//!
//! - [`named_store`]: the store of one name; [`store_state`]: its state.
//! - [`limiter_handle`]: the limiter in front of a store, and its users.

pub(crate) mod limiter_handle;
pub(crate) mod named_store;
pub(crate) mod store_state;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use arc_swap::ArcSwap;
use futures::future::join_all;
use sluice_config::store_access::StoreChoices;
use sluice_store::{Clock, Limiter};
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::stores::named_store::{LimiterAndSecret, NamedStore, StartedStore, StoreRuntime, close_in_time};
use crate::stores::store_state::StoreState;

/// The limiters in use by the names of their stores, for metrics.
pub(crate) type CurrentLimiters = Arc<ArcSwap<BTreeMap<String, Arc<Limiter>>>>;

/// The stores that policies use.
#[derive(Debug)]
pub(crate) struct Stores {
    runtime: StoreRuntime,
    named: BTreeMap<String, NamedStore>,
    current: CurrentLimiters,
}

impl Stores {
    pub(crate) fn new(
        runtime: Handle,
        clock: Clock,
        (local_quota_keys, memory_keys): (usize, usize),
        current: CurrentLimiters,
    ) -> Self {
        let runtime =
            StoreRuntime { runtime, clock, local_quota_keys, memory_keys, closing: TaskTracker::new() };
        Self { runtime, named: BTreeMap::new(), current }
    }

    /// Returns the limiters of the stores with these names, in the order of the names, and starts those whose choice
    /// has changed. While a new store connects, the old one stays in use, and `wait_for` receives the new one; call
    /// [`Stores::switch`] when it is ready.
    pub(crate) fn choose(
        &mut self,
        choices: &StoreChoices,
        names: &BTreeSet<&str>,
        wait_for: impl Fn(&Handle, String, StartedStore),
    ) -> Vec<LimiterAndSecret> {
        for (_, unused) in self.named.extract_if(.., |name, _| !names.contains(name.as_str())) {
            unused.retire(&self.runtime);
        }
        for &name in names {
            let store = self.named.entry(name.to_owned()).or_default();
            if let Some(starting) = store.choose(choices.get(name), &self.runtime) {
                wait_for(&self.runtime.runtime, name.to_owned(), starting);
            }
        }
        self.in_use()
    }

    /// Switches to a store that has been waited for, and returns the limiters of all stores. `None` if another choice
    /// has been made since.
    pub(crate) fn switch(&mut self, name: &str, started: &StartedStore) -> Option<Vec<LimiterAndSecret>> {
        let switched = self.named.get_mut(name)?.switch(started, &self.runtime);
        switched.then(|| self.in_use())
    }

    fn in_use(&self) -> Vec<LimiterAndSecret> {
        let limiters =
            self.named.iter().filter_map(|(name, store)| Some((name.clone(), store.limiter()?.clone())));
        self.current.store(Arc::new(limiters.collect()));
        self.named.values().filter_map(NamedStore::limiter_and_secret).collect()
    }

    /// Returns the state of each store, by its name.
    pub(crate) fn states(&self) -> BTreeMap<String, StoreState> {
        self.named.iter().map(|(name, store)| (name.clone(), store.state())).collect()
    }

    /// Closes the limiters in use, and waits for replaced ones. No request may follow.
    pub(crate) fn close(&self) -> impl Future<Output = ()> + Send + use<> {
        let limiters: Vec<_> = self.named.values().filter_map(|store| store.limiter().cloned()).collect();
        let replaced = self.runtime.closing.clone();
        replaced.close();
        async move {
            join_all(limiters.iter().map(|limiter| close_in_time(limiter.close()))).await;
            replaced.wait().await;
        }
    }
}

#[cfg(test)]
mod tests;
