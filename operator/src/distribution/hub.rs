//! The hub between policies and sidecars: published policies, sessions and their reports. Everything is in
//! memory behind one lock, which is never held across an await. A change wakes the sessions that it concerns. What happens in one
//! namespace looks at no policy and no session of another.
//!
//! - `policies`: publishes and removes policies, sets their replicas, and wakes sessions for that, not too often.
//! - `stores`: the stores that sidecars count in.
//! - `sessions`: begins and ends sessions, takes their reports, and says what each is to have.
//! - `clients`: resets of single clients, and the clients that limits in Shadow would have denied.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::Deref;
use std::sync::{Arc, Mutex, MutexGuard};

use foldhash::fast::RandomState;
use sluice_config::message::{ResetUid, TokenKeys};
use sluice_config::policy::Mode;
use sluice_crds::policy::{EnforcedBy, Enforcer, PodSelection};
use tokio::sync::{Notify, watch};
use tokio::time::Instant;

use crate::distribution::clients::{ActiveReset, LimitKey, RecentClients};
use crate::distribution::publication::{Blob, EncodedEvents, PublishedForms, PublishedLimit, Replicas};
use crate::distribution::session::{Changed, Identity, Session, SharedReports};
use crate::distribution::stores::HubStores;
use crate::locks::{Latch, lock};
use crate::names::{PodSelector, PolicyKey};
use crate::queue::Queue;

mod stores;

mod clients;
mod policies;
pub mod sessions;
#[cfg(test)]
mod tests;

/// The hub.
pub struct Hub {
    state: Mutex<HubState>,
    /// Grows with every change of policies, resets, or the access to stores.
    pub version: watch::Sender<u64>,
    /// All policies of the first list have been published, so that it is known which namespaces use which store.
    pub has_policies: Latch,
    /// The stores are known.
    pub has_stores: Latch,
    /// The mode of the installation is known.
    has_mode: Latch,
    /// Time of its creation.
    pub(super) began: Instant,
    /// Events with policies.
    pub(super) encoded: EncodedEvents,
    /// Receives the policies whose status may have changed.
    queue: Arc<Queue>,
    /// Notified when what sidecars report about stores may have changed.
    pub store_reports: Arc<Notify>,
    /// Notified when what sidecars report about resets has changed.
    pub reset_reports: Arc<Notify>,
}

#[derive(Default)]
struct HubState {
    policies: Indexed<DistributedPolicy>,
    /// Sessions by the UID of their pod.
    sessions: Indexed<Session>,
    /// The UIDs of their pods by the names of the sessions.
    names: HashMap<String, String>,
    /// The last reports of their sidecars.
    reports: SharedReports,
    /// Changes of replicas for which sessions are not woken yet, by namespace.
    replicas_changed: HashMap<String, WaitingReplicas>,
    stores: HubStores,
    /// The keys that the service verifies tokens of its callers with.
    token_keys: Option<TokenKeys>,
    /// Resets of single clients, by the UID of their object.
    resets: BTreeMap<ResetUid, ActiveReset>,
    /// The clients that limits in Shadow would have denied.
    shadow_denied: BTreeMap<LimitKey, RecentClients>,
    /// With `Shadow`, all policies are published in Shadow.
    mode: Mode,
}

/// The policies of a namespace whose replicas have changed since its sessions were woken last. A namespace without changes
/// for a while has no entry.
#[derive(Debug, Default)]
struct WaitingReplicas {
    policies: BTreeSet<String>,
    /// Whether the change of one of them matters.
    matters: bool,
}

/// One policy object.
struct DistributedPolicy {
    key: PolicyKey,
    selector: PodSelector,
    enforced_by: EnforcedBy,
    /// The pods of the last valid edit, as the policy says it.
    pods: Option<PodSelection>,
    /// Name of the store that the last valid edit counts in.
    store: String,
    /// The limits of the last valid edit.
    limits: Arc<[PublishedLimit]>,
    /// The last valid edit, or `None` if no edit could be published. Sidecars keep it after an invalid edit.
    published: Option<PublishedForms>,
    /// Whether only pods without a version of the policy receive it.
    is_fallback: bool,
    /// Content that it refers to, and that the one before referred to: pods may still fetch it.
    blobs: Vec<Blob>,
    previous_blobs: Vec<Blob>,
    /// Time at which the last valid edit was published, under the present mode of the installation.
    published_at: Instant,
    /// Whether the hub has had no other edit or form of the policy before it.
    is_first: bool,
    replicas: Replicas,
}

impl DistributedPolicy {
    fn selects(&self, pod: &Identity) -> bool {
        match pod.enforcer {
            Enforcer::Sidecar => {
                self.enforced_by.sidecar
                    && self.key.namespace == pod.namespace
                    && self.selector.matches(&pod.labels)
            }
            Enforcer::Service => self.enforced_by.service,
        }
    }
}

impl Namespaced for DistributedPolicy {
    fn namespace(&self) -> &str {
        &self.key.namespace
    }
}

/// Stands for a namespace in the index of sessions: that of the service's pods, which enforce policies of all namespaces.
const ALL_NAMESPACES: &str = "*";

impl Namespaced for Session {
    fn namespace(&self) -> &str {
        match self.identity.enforcer {
            Enforcer::Sidecar => &self.identity.namespace,
            Enforcer::Service => ALL_NAMESPACES,
        }
    }
}

impl HubState {
    /// Returns the policies that select the pod of a session, with their UIDs.
    fn policies_of(&self, session: &Session) -> impl Iterator<Item = (&String, &DistributedPolicy)> {
        let (own, all) = match session.identity.enforcer {
            Enforcer::Sidecar => (Some(self.policies.in_namespace(&session.identity.namespace)), None),
            Enforcer::Service => (None, Some(self.policies.iter())),
        };
        let policies = own.into_iter().flatten().chain(all.into_iter().flatten());
        policies.filter(|(_, policy)| policy.selects(&session.identity))
    }

    /// Returns the sessions that may enforce policies of a namespace, by the UIDs of their pods.
    fn sessions_for(&self, namespace: &str) -> impl Iterator<Item = (&String, &Session)> {
        self.sessions.in_namespace(namespace).chain(self.sessions.in_namespace(ALL_NAMESPACES))
    }

    /// Wakes the sessions of a namespace that a change concerns.
    fn wake(&self, namespace: &str, changed: Changed, concerns: impl Fn(&Session) -> bool) {
        let sessions = self.sessions_for(namespace).map(|(_, session)| session);
        sessions.filter(|session| concerns(session)).for_each(|session| session.wakeup.wake(changed));
    }
}

impl Hub {
    /// Returns an empty hub that accepts no sessions yet.
    pub fn new(queue: Arc<Queue>) -> Self {
        Self {
            state: Mutex::default(),
            version: watch::Sender::new(0),
            has_policies: Latch::default(),
            has_stores: Latch::default(),
            has_mode: Latch::default(),
            began: Instant::now(),
            encoded: EncodedEvents::default(),
            queue,
            store_reports: Arc::default(),
            reset_reports: Arc::default(),
        }
    }

    /// Allows sessions to begin once the stores and the mode of the installation are known. Call this when all policies
    /// of the first list have been published: a sidecar that connects earlier would drop the policies that it does not
    /// receive.
    pub fn open(&self) {
        if self.has_policies.is_set() {
            return;
        }
        for policy in self.lock().policies.values_mut() {
            policy.replicas.restart_hold();
        }
        self.has_policies.set();
        self.store_reports.notify_one();
    }

    /// Waits until sessions may begin.
    pub async fn opened(&self) {
        for known in [&self.has_policies, &self.has_stores, &self.has_mode] {
            known.wait().await;
        }
    }

    /// Sets the mode of the installation. With `Shadow`, sidecars receive every policy in Shadow, also those
    /// whose last edit is invalid.
    pub fn set_mode(&self, mode: Mode) {
        let mut state = self.lock();
        if state.mode != mode {
            state.mode = mode;
            let (now, is_known) = (Instant::now(), self.has_mode.is_set());
            let policies = state.policies.values_mut().map(|policy| {
                policy.published_at = now;
                // Under a mode that changes, its pods receive another form.
                policy.is_first &= !is_known;
                policy.key.clone()
            });
            let keys: Vec<_> = policies.collect();
            state.sessions.values().for_each(|session| session.wakeup.wake(Changed::Policies));
            drop(state);
            self.changed();
            self.queue.add_all(keys);
        } else {
            drop(state);
        }
        self.has_mode.set();
    }

    /// Sets the keys that the service verifies tokens of its callers with.
    pub fn set_token_keys(&self, keys: TokenKeys) {
        let mut state = self.lock();
        if state.token_keys.as_ref() != Some(&keys) {
            state.token_keys = Some(keys);
            let of_service = state.sessions.in_namespace(ALL_NAMESPACES);
            of_service.for_each(|(_, session)| session.wakeup.wake(Changed::Policies));
        }
    }

    fn changed(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    fn lock(&self) -> MutexGuard<'_, HubState> {
        // No statement that changes the state can panic halfway.
        lock(&self.state)
    }
}

/// An item of a namespace.
trait Namespaced {
    fn namespace(&self) -> &str;
}

/// Items by UID, and the UIDs of each namespace.
struct Indexed<T> {
    items: HashMap<String, T, RandomState>,
    namespaces: HashMap<String, BTreeSet<String>>,
}

impl<T> Default for Indexed<T> {
    fn default() -> Self {
        Self { items: HashMap::default(), namespaces: HashMap::new() }
    }
}

/// Items are read as in a map.
impl<T> Deref for Indexed<T> {
    type Target = HashMap<String, T, RandomState>;

    fn deref(&self) -> &Self::Target {
        &self.items
    }
}

impl<T: Namespaced> Indexed<T> {
    /// Returns an item to be changed. It stays in its namespace.
    pub(super) fn get_mut(&mut self, uid: &str) -> Option<&mut T> {
        self.items.get_mut(uid)
    }

    pub(super) fn insert(&mut self, uid: &str, item: T) -> Option<T> {
        let before = self.remove(uid);
        self.namespaces.entry(item.namespace().to_owned()).or_default().insert(uid.to_owned());
        self.items.insert(uid.to_owned(), item);
        before
    }

    pub(super) fn remove(&mut self, uid: &str) -> Option<T> {
        let item = self.items.remove(uid)?;
        if let Some(uids) = self.namespaces.get_mut(item.namespace()) {
            uids.remove(uid);
            if uids.is_empty() {
                self.namespaces.remove(item.namespace());
            }
        }
        Some(item)
    }

    pub(super) fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.items.values_mut()
    }

    /// Returns the items of a namespace with their UIDs, in the order of these.
    pub(super) fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = (&String, &T)> {
        let uids = self.namespaces.get(namespace).into_iter().flatten();
        uids.filter_map(|uid| Some((uid, self.items.get(uid)?)))
    }
}
