//! Secrets that other objects refer to. Each is watched by its name, so the operator needs no right to any other: the
//! request names its object, and RBAC can grant it by `resourceNames`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::Secret;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::utils::Backoff;
use kube::runtime::watcher::{self, Event};
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::object_key::ObjectKey;

/// Interval at which a watch that fails is tried again, and so the longest time after which a new right is noticed.
const RETRY_EVERY: Duration = Duration::from_secs(5);

/// A Secret that an object refers to.
#[derive(Debug, Clone, PartialEq)]
pub enum Reference {
    /// It has not been read yet.
    Pending,
    /// It exists.
    Found(Arc<Secret>),
    /// It does not exist.
    NotFound,
    /// The operator has no right to read it.
    NotPermitted,
    /// The API server does not answer, or not as expected.
    Unreadable(String),
}

/// The Secrets that objects refer to.
pub struct References {
    client: kube::Client,
    watched: Mutex<BTreeMap<ObjectKey, Watched>>,
    /// Notified when a Secret has changed.
    changed: Arc<Notify>,
}

/// A Secret that is watched.
struct Watched {
    state: Arc<Mutex<Reference>>,
    task: AbortHandle,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// A delay that stays the same.
struct Constant;

impl Iterator for Constant {
    type Item = Duration;

    fn next(&mut self) -> Option<Duration> {
        Some(RETRY_EVERY)
    }
}

impl Backoff for Constant {
    fn reset(&mut self) {}
}

impl References {
    /// Watches nothing yet. Notifies `changed` when a Secret has changed.
    #[must_use]
    pub fn new(client: kube::Client, changed: Arc<Notify>) -> Self {
        Self { client, watched: Mutex::default(), changed }
    }

    /// Watches these Secrets and no others. Must be called within a tokio runtime.
    pub fn watch_only(&self, wanted: &BTreeSet<ObjectKey>) {
        let mut watched = lock(&self.watched);
        watched.retain(|key, _| wanted.contains(key));
        for key in wanted {
            watched.entry(key.clone()).or_insert_with(|| self.start(key));
        }
    }

    /// Returns what is known of a Secret.
    #[must_use]
    pub fn get(&self, key: &ObjectKey) -> Reference {
        let watched = lock(&self.watched);
        watched.get(key).map_or(Reference::Pending, |watched| lock(&watched.state).clone())
    }

    fn start(&self, key: &ObjectKey) -> Watched {
        let state = Arc::new(Mutex::new(Reference::Pending));
        let api: Api<Secret> = Api::namespaced(self.client.clone(), &key.namespace);
        let task = tokio::spawn(follow(api, key.clone(), state.clone(), self.changed.clone()));
        Watched { state, task: task.abort_handle() }
    }
}

/// Keeps the state of one Secret up to date.
async fn follow(api: Api<Secret>, key: ObjectKey, state: Arc<Mutex<Reference>>, changed: Arc<Notify>) {
    let config = watcher::Config::default().fields(&format!("metadata.name={}", key.name));
    let mut stream = std::pin::pin!(watcher::watcher(api, config).backoff(Constant));
    let mut listed = None;
    while let Some(event) = stream.next().await {
        let new = match event {
            Ok(Event::Init) => {
                listed = None;
                continue;
            }
            Ok(Event::InitApply(secret)) => {
                listed = Some(secret);
                continue;
            }
            Ok(Event::InitDone) => {
                listed.take().map_or(Reference::NotFound, |secret| Reference::Found(Arc::new(secret)))
            }
            Ok(Event::Apply(secret)) => Reference::Found(Arc::new(secret)),
            Ok(Event::Delete(_)) => Reference::NotFound,
            Err(error) if is_forbidden(&error) => Reference::NotPermitted,
            Err(error) => {
                tracing::warn!(secret = %key, "a watch failed and will be restarted: {error}");
                // What was read stays known while the API server is away.
                match &*lock(&state) {
                    Reference::Found(_) => continue,
                    _ => Reference::Unreadable(error.to_string()),
                }
            }
        };
        let is_new = std::mem::replace(&mut *lock(&state), new.clone()) != new;
        if is_new {
            changed.notify_one();
        }
    }
}

fn is_forbidden(error: &watcher::Error) -> bool {
    let code = match error {
        watcher::Error::InitialListFailed(kube::Error::Api(status))
        | watcher::Error::WatchStartFailed(kube::Error::Api(status)) => status.code,
        watcher::Error::WatchError(status) => status.code,
        _ => return false,
    };
    code == 403
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    // No statement that changes a value can panic halfway.
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
