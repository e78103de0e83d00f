//! Policies as the API server has them. They are watched as plain objects, so that one that cannot be read does not
//! keep the others from being enforced.

use std::collections::BTreeMap;
use std::sync::{Arc, PoisonError, RwLock};

use kube::api::{Api, ApiResource, DynamicObject};
use kube::runtime::watcher;
use kube::{Resource as _, ResourceExt as _};
use sluice_crds::RateLimitPolicy;

use crate::cluster::follow::{Change, follow};
use crate::context::Context;
use crate::policy::publish::publish;
use crate::policy::queue::PolicyKey;

/// All policies.
#[derive(Default)]
pub struct PolicyTable(RwLock<BTreeMap<PolicyKey, Arc<DynamicObject>>>);

/// The API of policies as plain objects.
#[must_use]
pub fn api(client: kube::Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<RateLimitPolicy>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}

impl PolicyTable {
    /// One of them.
    #[must_use]
    pub fn get(&self, key: &PolicyKey) -> Option<Arc<DynamicObject>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner).get(key).cloned()
    }

    /// Those of a namespace.
    #[must_use]
    pub fn of(&self, namespace: &str) -> Vec<PolicyKey> {
        let table = self.0.read().unwrap_or_else(PoisonError::into_inner);
        table.keys().filter(|key| key.namespace == namespace).cloned().collect()
    }
}

/// Follows the watch; publishes every edit, and opens the hub when all that there was has been published: a sidecar
/// that came earlier would be told to drop what it has.
pub async fn watch(context: &Context) {
    let stream = watcher::watcher(api(context.client.clone(), None), watcher::Config::default());
    follow(stream, |change| match change {
        Change::Applied(object) => {
            let key = key(&object);
            publish(&context.hub, &key, &object);
            context
                .policies
                .0
                .write()
                .unwrap_or_else(PoisonError::into_inner)
                .insert(key.clone(), Arc::new(object));
            context.queue.add(key);
        }
        Change::Gone { namespace, name, uid } => {
            context.hub.remove(&uid);
            let key = PolicyKey { namespace, name };
            let mut table = context.policies.0.write().unwrap_or_else(PoisonError::into_inner);
            if table.get(&key).is_some_and(|object| object.uid().as_deref() == Some(&uid)) {
                table.remove(&key);
            }
        }
        Change::Synced => context.hub.open(),
    })
    .await;
}

fn key(object: &DynamicObject) -> PolicyKey {
    PolicyKey {
        namespace: object.meta().namespace.clone().unwrap_or_default(),
        name: object.meta().name.clone().unwrap_or_default(),
    }
}
