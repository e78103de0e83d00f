//! Tables of the objects of one kind of Sluice as the API server has them. Like policies, they are watched as untyped
//! objects, so that one unreadable object does not stop the watch of the others.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher;
use kube::{Resource, ResourceExt as _};
use tokio::sync::watch;

use crate::cluster::watch::{Change, follow};
use crate::object_key::ObjectKey;

/// Returns the API of a kind as untyped objects, in one namespace or in all.
#[must_use]
pub fn api<K: Resource<DynamicType = ()>>(
    client: kube::Client,
    namespace: Option<&str>,
) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<K>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}

/// All objects of a kind.
pub struct Untyped<K> {
    table: watch::Sender<Table>,
    kind: PhantomData<fn() -> K>,
}

#[derive(Default)]
struct Table {
    objects: BTreeMap<ObjectKey, Arc<DynamicObject>>,
    /// Whether the first list is complete.
    listed: bool,
}

impl<K> Default for Untyped<K> {
    fn default() -> Self {
        Self { table: watch::Sender::default(), kind: PhantomData }
    }
}

impl<K: Resource<DynamicType = ()>> Untyped<K> {
    /// Keeps the table up to date and calls `on_change` after each change.
    pub async fn watch(&self, client: kube::Client, mut on_change: impl FnMut() + Send) {
        let stream = watcher::watcher(api::<K>(client, None), watcher::Config::default());
        follow(stream, |change| {
            self.table.send_modify(|table| match change {
                Change::Applied(object) => {
                    let key = ObjectKey::new(object.namespace().unwrap_or_default(), object.name_any());
                    table.objects.insert(key, Arc::new(object));
                }
                Change::Deleted { namespace, name, .. } => {
                    table.objects.remove(&ObjectKey { namespace, name });
                }
                Change::Listed => table.listed = true,
            });
            on_change();
        })
        .await;
    }

    /// Returns all objects once they have been listed.
    #[must_use]
    pub fn all(&self) -> Option<BTreeMap<ObjectKey, Arc<DynamicObject>>> {
        let table = self.table.borrow();
        table.listed.then(|| table.objects.clone())
    }
}
