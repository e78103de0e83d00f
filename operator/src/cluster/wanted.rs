//! Watches that run while somebody wants what they watch.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, Weak};

use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::locks::lock;

/// Watches, each of which runs while an owner wants what it watches, with what they have found.
pub struct Wanted<O, T, V>(Arc<Shared<O, T, V>>);

/// The part that the watches change.
struct Shared<O, T, V> {
    state: Mutex<WantedState<O, T, V>>,
    /// Notified when something was found.
    found: Notify,
    /// Receives the owners that a change may affect.
    on_change: Box<dyn Fn(Vec<O>) + Send + Sync>,
}

struct WantedState<O, T, V> {
    owners: BTreeMap<O, BTreeSet<T>>,
    watched: BTreeMap<T, Watched<V>>,
    /// Number of watches that were started.
    started: u64,
}

/// A watch.
pub struct Watched<V> {
    /// One that was ended may still report a change.
    id: u64,
    /// Its result so far.
    pub found: V,
    task: AbortHandle,
}

impl<V> Drop for Watched<V> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Takes what a watch finds.
pub struct Finder<O, T, V> {
    shared: Weak<Shared<O, T, V>>,
    /// The watched thing.
    pub thing: T,
    id: u64,
}

impl<O: Ord + Clone, T: Ord + Clone, V> Wanted<O, T, V> {
    /// Watches nothing yet. Passes the owners that a change may affect to `on_change`.
    pub fn new(on_change: impl Fn(Vec<O>) + Send + Sync + 'static) -> Self {
        let state = WantedState { owners: BTreeMap::new(), watched: BTreeMap::new(), started: 0 };
        Self(Arc::new(Shared {
            state: Mutex::new(state),
            found: Notify::new(),
            on_change: Box::new(on_change),
        }))
    }

    /// Watches these things for an owner, and no others for it. Watches that found nothing to `keep` end, and `start` may refuse one,
    /// given those that run. Must be called within a tokio runtime.
    pub fn want(
        &self,
        owner: &O,
        things: BTreeSet<T>,
        keep: impl Fn(&V) -> bool,
        start: impl Fn(&BTreeMap<T, Watched<V>>, Finder<O, T, V>) -> Option<(V, AbortHandle)>,
    ) {
        let WantedState { owners, watched, started } = &mut *lock(&self.0.state);
        let before = match things.is_empty() {
            true => owners.remove(owner),
            false => owners.insert(owner.clone(), things),
        };
        if before.as_ref() == owners.get(owner) {
            return;
        }
        let wanted: BTreeSet<T> = owners.values().flatten().cloned().collect();
        watched.retain(|thing, watched| wanted.contains(thing) && keep(&watched.found));
        for thing in wanted {
            if !watched.contains_key(&thing) {
                *started += 1;
                let finder = Finder { shared: Arc::downgrade(&self.0), thing: thing.clone(), id: *started };
                if let Some((found, task)) = start(watched, finder) {
                    watched.insert(thing, Watched { id: *started, found, task });
                }
            }
        }
    }

    /// Returns what was found, as `read` reads it, or `None` if the thing is not watched.
    pub fn get<R>(&self, thing: &T, read: impl FnOnce(&V) -> R) -> Option<R> {
        lock(&self.0.state).watched.get(thing).map(|watched| read(&watched.found))
    }

    /// Waits until everything that an owner wants is found.
    pub async fn found(&self, owner: &O, is_found: impl Fn(&V) -> bool) {
        loop {
            let notified = self.0.found.notified();
            {
                let WantedState { owners, watched, .. } = &*lock(&self.0.state);
                let mut watches =
                    owners.get(owner).into_iter().flatten().filter_map(|thing| watched.get(thing));
                if watches.all(|watched| is_found(&watched.found)) {
                    return;
                }
            }
            notified.await;
        }
    }
}

impl<O: Ord + Clone, T: Ord + Clone, V> Finder<O, T, V> {
    /// Changes what was found, given all watches, if the watch is still wanted. `change` reports whether the owners are told.
    pub fn change(&self, change: impl FnOnce(&T, &mut BTreeMap<T, Watched<V>>) -> bool) {
        let Some(shared) = self.shared.upgrade() else { return };
        let mut state = lock(&shared.state);
        let is_wanted = state.watched.get(&self.thing).is_some_and(|watched| watched.id == self.id);
        if !is_wanted || !change(&self.thing, &mut state.watched) {
            return;
        }
        let owners = state.owners.iter().filter(|(_, things)| things.contains(&self.thing));
        let owners = owners.map(|(owner, _)| owner.clone()).collect();
        drop(state);
        shared.found.notify_waiters();
        (shared.on_change)(owners);
    }
}
