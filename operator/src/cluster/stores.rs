//! The table of stores as the API server has them. Like policies, they are watched as untyped objects, so that one
//! unreadable object does not stop the watch of the others.

use std::collections::BTreeMap;
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher;
use sluice_crds::RateLimitStore;
use tokio::sync::watch;

use crate::cluster::watch::{Change, follow};
use crate::object_key::StoreKey;

/// Returns the API of stores as untyped objects, in one namespace or in all.
#[must_use]
pub fn api(client: kube::Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<RateLimitStore>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}

/// All stores.
#[derive(Default)]
pub struct Stores {
    table: watch::Sender<Table>,
}

#[derive(Default)]
struct Table {
    objects: BTreeMap<StoreKey, Arc<DynamicObject>>,
    /// Whether the first list is complete.
    listed: bool,
}

impl Stores {
    /// Keeps the table up to date and calls `on_change` after each change.
    pub async fn watch(&self, client: kube::Client, mut on_change: impl FnMut() + Send) {
        let stream = watcher::watcher(api(client, None), watcher::Config::default());
        follow(stream, |change| {
            self.table.send_modify(|table| match change {
                Change::Applied(object) => {
                    let key = StoreKey::new(object.namespace().unwrap_or_default(), object.name_any());
                    table.objects.insert(key, Arc::new(object));
                }
                Change::Deleted { namespace, name, .. } => {
                    table.objects.remove(&StoreKey { namespace, name });
                }
                Change::Listed => table.listed = true,
            });
            on_change();
        })
        .await;
    }

    /// Returns all stores once they have been listed.
    #[must_use]
    pub fn all(&self) -> Option<BTreeMap<StoreKey, Arc<DynamicObject>>> {
        let table = self.table.borrow();
        table.listed.then(|| table.objects.clone())
    }
}
