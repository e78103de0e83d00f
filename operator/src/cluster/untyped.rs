//! Tables of the objects of one kind of Sluice as the API server has them.

use std::collections::BTreeMap;
use std::marker::PhantomData;
use std::sync::Arc;

use kube::api::DynamicObject;
use kube::{Resource, ResourceExt as _};
use tokio::sync::watch;

use crate::cluster::own_kinds::follow_all;
use crate::cluster::watch::Change;
use crate::object_key::ObjectKey;

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
        follow_all::<K>(client, |change| {
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
