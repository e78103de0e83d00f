//! Tables of the objects of one kind, by namespace and name. Only the fields that matter here are kept.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, PoisonError, RwLock};

use futures::StreamExt as _;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Error, Event, Result};
use kube::{Resource, ResourceExt as _};
use serde::de::DeserializeOwned;

use crate::cluster::watch::{Change, NamespaceChange, follow};

#[cfg(test)]
mod tests;

/// The fields of an object that matter here.
pub trait Trimmed: Sized + PartialEq + Send + Sync + 'static {
    /// The object as the API server has it.
    type Object: Resource<DynamicType = ()> + Clone + Debug + DeserializeOwned + Send + 'static;

    /// Label selector of the objects that are watched. All of them by default.
    const LABELS: Option<&'static str> = None;

    /// Whether clusters may lack the kind. Without it there are no objects.
    const IS_OPTIONAL: bool = false;

    /// Reads the fields, or returns `None` if the object does not matter.
    fn read(object: Self::Object) -> Option<Self>;
}

/// Objects by namespace and name.
type Table<T> = BTreeMap<String, BTreeMap<String, Arc<T>>>;

/// All objects of one kind that matter.
pub struct Objects<T> {
    table: Arc<RwLock<Table<T>>>,
}

/// Takes the answer to a list of a kind that is not installed for an empty list.
fn none_if_not_installed<K>(event: Result<Event<K>>) -> Result<Event<K>> {
    match event {
        Err(Error::InitialListFailed(kube::Error::Api(status))) if status.code == 404 => Ok(Event::InitDone),
        event => event,
    }
}

impl<T> Default for Objects<T> {
    fn default() -> Self {
        Self { table: Arc::default() }
    }
}

impl<T: Trimmed> Objects<T> {
    /// Keeps the table up to date and passes on the namespace of every change.
    pub async fn watch(&self, client: kube::Client, mut on_change: impl FnMut(NamespaceChange<'_>) + Send) {
        let api: Api<T::Object> = Api::all(client);
        let config = watcher::Config { label_selector: T::LABELS.map(Into::into), ..Default::default() };
        let stream = watcher::watcher(api, config);
        let stream = match T::IS_OPTIONAL {
            true => stream.default_backoff().map(none_if_not_installed).left_stream(),
            false => stream.right_stream(),
        };
        follow(stream, |change| {
            let (namespace, name, object) = match change {
                Change::Applied(object) => {
                    (object.namespace().unwrap_or_default(), object.name_any(), T::read(object))
                }
                Change::Deleted { namespace, name, .. } => (namespace, name, None),
                Change::Listed => return on_change(NamespaceChange::Listed),
            };
            if self.set(&namespace, name, object) {
                on_change(NamespaceChange::Changed(&namespace));
            }
        })
        .await;
    }

    /// Sets or removes an object. Reports whether that changed the table.
    fn set(&self, namespace: &str, name: String, object: Option<T>) -> bool {
        // The table is consistent even if a holder of the lock panicked: each change is a single statement.
        let mut table = self.table.write().unwrap_or_else(PoisonError::into_inner);
        let Some(object) = object.map(Arc::new) else {
            let Some(objects) = table.get_mut(namespace) else { return false };
            let removed = objects.remove(&name).is_some();
            if objects.is_empty() {
                table.remove(namespace);
            }
            return removed;
        };
        let old = table.entry(namespace.to_owned()).or_default().insert(name, object.clone());
        old.as_ref() != Some(&object)
    }

    /// Returns the objects of a namespace, ordered by name.
    #[must_use]
    pub fn in_namespace(&self, namespace: &str) -> Vec<Arc<T>> {
        let table = self.table.read().unwrap_or_else(PoisonError::into_inner);
        table.get(namespace).into_iter().flat_map(BTreeMap::values).cloned().collect()
    }
}
