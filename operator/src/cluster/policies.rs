//! The table of policies as the API server has them.
//!
//! The watch lags behind the operator's own writes of status, so the table takes the object that a write returns, and leaves out
//! what the watch still reports of the time before. Otherwise the next write would conflict with the last one.
//!
//! The table also tracks which policies of the first list have not been published yet: sidecars may connect
//! only when all of them have been, because a sidecar drops the policies that it does not receive.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use sluice_crds::RateLimitPolicy;
use tokio::sync::{Notify, watch};

use crate::cluster::watch::{Change, follow_all, key_of};
use crate::names::PolicyKey;

#[cfg(test)]
mod tests;

/// All policies.
#[derive(Default)]
pub struct Policies {
    table: watch::Sender<PolicyTable>,
}

#[derive(Default)]
struct PolicyTable {
    policies: BTreeMap<PolicyKey, Policy>,
    /// Whether the first list is complete.
    listed: bool,
    /// Policies of the first list that have not been published.
    unpublished: BTreeSet<PolicyKey>,
    /// Resource versions of own writes that the watch has not reported yet.
    written: BTreeMap<PolicyKey, u64>,
}

/// One policy.
struct Policy {
    object: Arc<DynamicObject>,
    /// Notified when this edit is not the newest any more. Whoever waits for that is not woken by changes of others.
    superseded: Arc<Notify>,
}

/// The origin of a change that the watch reports.
#[derive(Debug, PartialEq, Eq)]
enum Origin {
    /// The table had it, from an own write or an earlier list.
    Known,
    /// Somebody else, or unknown.
    Other,
}

impl PolicyTable {
    /// Reports whether `edit` is still the newest edit of the policy. Changes of status and labels are not
    /// edits.
    fn is_current(&self, key: &PolicyKey, edit: &DynamicObject) -> bool {
        self.policies.get(key).is_some_and(|newest| is_same_edit(&newest.object, edit))
    }

    fn insert(&mut self, key: PolicyKey, object: DynamicObject) {
        let same = self.policies.get(&key).filter(|before| is_same_edit(&before.object, &object));
        let superseded = same.map(|same| same.superseded.clone());
        if superseded.is_none() {
            self.remove(&key);
        }
        let superseded = superseded.unwrap_or_default();
        self.policies.insert(key, Policy { object: Arc::new(object), superseded });
    }

    fn remove(&mut self, key: &PolicyKey) {
        if let Some(policy) = self.policies.remove(key) {
            policy.superseded.notify_waiters();
        }
    }
}

/// Reports whether two objects are the same edit of a policy, as the API server reads it: a new definition may add a field to what it
/// stores, and it may report what it has stored without a field that its definition does not have yet.
fn is_same_edit(one: &DynamicObject, other: &DynamicObject) -> bool {
    let (old, new) = (&one.metadata, &other.metadata);
    old.uid == new.uid && old.generation == new.generation && one.data.get("spec") == other.data.get("spec")
}

impl Policies {
    /// Keeps the table up to date and passes on every change after the table has it.
    pub async fn watch(&self, client: kube::Client, mut on_change: impl FnMut(Change<PolicyKey>) + Send) {
        follow_all::<RateLimitPolicy>(client, |change| {
            on_change(match change {
                Change::Applied(object) => match self.apply_change(object) {
                    (_, Origin::Known) => return,
                    (key, Origin::Other) => Change::Applied(key),
                },
                Change::Deleted { key, uid } => {
                    self.delete(&key, &uid);
                    Change::Deleted { key, uid }
                }
                Change::Listed => {
                    self.list_is_complete();
                    Change::Listed
                }
            });
        })
        .await;
    }

    #[cfg(test)]
    pub(crate) fn apply(&self, object: DynamicObject) -> PolicyKey {
        self.apply_change(object).0
    }

    fn apply_change(&self, object: DynamicObject) -> (PolicyKey, Origin) {
        let key = key_of(&object);
        let mut origin = Origin::Other;
        self.table.send_if_modified(|table| {
            let reported = version(&object);
            if let Some(written) = table.written.get(&key).copied() {
                if reported < Some(written) {
                    return false;
                }
                table.written.remove(&key);
                if reported == Some(written) {
                    origin = Origin::Known;
                    return false;
                }
            }
            let is_known = |known: &Policy| version(&known.object) == reported && reported.is_some();
            if table.is_current(&key, &object) && table.policies.get(&key).is_some_and(is_known) {
                origin = Origin::Known;
                return false;
            }
            // A list that broke off is repeated. What has been published since needs no second reconcile.
            if !table.listed && !table.is_current(&key, &object) {
                table.unpublished.insert(key.clone());
            }
            table.insert(key.clone(), object);
            true
        });
        (key, origin)
    }

    /// Takes the object that an own write of status has returned.
    pub fn wrote(&self, object: DynamicObject) {
        let key = key_of(&object);
        self.table.send_if_modified(|table| {
            let Some(written) = version(&object) else { return false };
            // The watch may have been faster.
            let is_newer = table.is_current(&key, &object)
                && table.policies.get(&key).is_some_and(|known| version(&known.object) < Some(written));
            if is_newer {
                table.written.insert(key.clone(), written);
                table.insert(key, object);
            }
            is_newer
        });
    }

    pub(crate) fn delete(&self, key: &PolicyKey, uid: &str) {
        self.table.send_if_modified(|table| {
            let found =
                table.policies.get(key).is_some_and(|policy| policy.object.uid().as_deref() == Some(uid));
            if found {
                table.written.remove(key);
                table.remove(key);
                table.unpublished.remove(key);
            }
            found
        });
    }

    pub(crate) fn list_is_complete(&self) {
        self.table.send_modify(|table| {
            table.listed = true;
            // A list may leave out the version that was written.
            table.written.clear();
        });
    }

    /// Returns a policy.
    pub fn get(&self, key: &PolicyKey) -> Option<Arc<DynamicObject>> {
        self.table.borrow().policies.get(key).map(|policy| policy.object.clone())
    }

    /// Returns the keys of all policies.
    pub fn keys(&self) -> Vec<PolicyKey> {
        self.table.borrow().policies.keys().cloned().collect()
    }

    /// Returns the keys of all policies of a namespace.
    pub fn in_namespace(&self, namespace: &str) -> Vec<PolicyKey> {
        let table = self.table.borrow();
        table.policies.keys().filter(|key| key.namespace == namespace).cloned().collect()
    }

    /// Calls `publish` and returns its result, unless the policy has been edited or deleted since `edit` was
    /// read. The table is locked during the call: the watch removes a deleted policy from the table before
    /// anything else, so no policy is published after its deletion has been processed.
    pub fn publish_if_current<T>(
        &self,
        key: &PolicyKey,
        edit: &DynamicObject,
        publish: impl FnOnce() -> T,
    ) -> Option<T> {
        let mut published = None;
        self.table.send_if_modified(|table| {
            if !table.is_current(key, edit) {
                return false;
            }
            published = Some(publish());
            table.unpublished.remove(key)
        });
        published
    }

    /// Waits until the policy is deleted, or edited since `edit` was read.
    pub async fn superseded(&self, key: &PolicyKey, edit: &DynamicObject) {
        let superseded = {
            let table = self.table.borrow();
            let newest = table.policies.get(key).filter(|newest| is_same_edit(&newest.object, edit));
            // From here on it hears of the end, before the table can change.
            newest.map(|newest| newest.superseded.clone().notified_owned())
        };
        if let Some(superseded) = superseded {
            superseded.await;
        }
    }

    /// Waits until every policy of the first list has been published or deleted.
    pub async fn all_published(&self) {
        let mut table = self.table.subscribe();
        let _ = table.wait_for(|table| table.listed && table.unpublished.is_empty()).await;
    }
}

/// Returns the resource version, which grows with every change:
/// <https://kubernetes.io/docs/reference/using-api/api-concepts/#resource-versions>.
fn version(object: &DynamicObject) -> Option<u64> {
    object.metadata.resource_version.as_deref()?.parse().ok()
}
