//! What is published, who listens, and what they have said. All in memory and behind one lock that is never held
//! across an await; listeners are woken by a version that goes up.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use kube::core::{Selector, SelectorExt as _};
use serde_json::value::RawValue;
use sluice_config::message::{
    Policies, PolicyReport, Published, Replica, Report, StoreAccess, StoreReport, VERSION,
};
use sluice_config::{CompiledPolicy, PolicyHash};
use tokio::sync::{Notify, mpsc, watch};
use tokio::time::Instant;

use crate::distribution::identity::Identity;
use crate::distribution::listener::{LAPSE, Listener, shortened};
use crate::distribution::sharing::Replicas;
use crate::policy::queue::{PolicyKey, Queue};

/// The hub.
pub struct Hub {
    state: Mutex<State>,
    version: watch::Sender<u64>,
    open: watch::Sender<Open>,
    queue: Arc<Queue>,
}

/// What streams wait for.
#[derive(Default)]
struct Open {
    /// Everything that there is has been published.
    published: bool,
    /// It is known how the store is reached.
    access: bool,
}

#[derive(Default)]
struct State {
    policies: BTreeMap<String, Entry>,
    listeners: HashMap<String, Listener>,
    access: Option<StoreAccess>,
}

/// One policy object.
struct Entry {
    key: PolicyKey,
    selector: Selector,
    /// The newest valid edit; nothing if there was none yet.
    published: Option<Published>,
    /// Whether a newer edit is invalid.
    keep: bool,
    since: Instant,
    sharers: Replicas,
}

/// What a pod should have, all of one moment.
pub struct Due {
    /// Which one it is of those that share each of its policies, as far as that is known.
    pub live: BTreeMap<String, Replica>,
    /// The whole map of its policies, if it was asked for.
    pub policies: Option<Policies>,
    /// Policies that are not in the map because it is not known who shares them: the pod keeps what it has of them.
    pub held: BTreeSet<String>,
    /// When the first of these need not be held back any longer.
    pub held_until: Option<Instant>,
}

/// What a pod has said about a policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Confirmation {
    /// It has this very hash in force.
    Applied,
    /// It has refused it.
    Refused(String),
    /// It is connected and has said nothing of it, or another hash.
    Other,
    /// It has no stream.
    NotConnected,
}

/// What a pod has said about the store.
pub type StoreVoice = Option<StoreReport>;

impl Hub {
    /// An empty hub, closed to listeners until [`Hub::open`]. Policies whose status may have changed go to `queue`.
    #[must_use]
    pub fn new(queue: Arc<Queue>) -> Self {
        Self {
            state: Mutex::default(),
            version: watch::Sender::new(0),
            open: watch::Sender::default(),
            queue,
        }
    }

    /// Everything that there is has been published: listeners may come, once there is access to the store.
    pub fn open(&self) {
        if self.open.borrow().published {
            return;
        }
        for entry in self.lock().policies.values_mut() {
            entry.sharers.hold_from_now();
        }
        self.open.send_modify(|open| open.published = true);
    }

    /// Resolves when everything that there is has been published.
    pub async fn published(&self) {
        let _ = self.open.subscribe().wait_for(|open| open.published).await;
    }

    /// Resolves when the hub is open: everything is published, and it is known how the store is reached. A sidecar that
    /// came earlier would be told to drop what it has.
    pub async fn opened(&self) {
        let _ = self.open.subscribe().wait_for(|open| open.published && open.access).await;
    }

    /// Publishes a policy, or that its newest edit is invalid. Returns the hash in force and since when.
    pub fn publish(
        &self,
        uid: &str,
        key: &PolicyKey,
        valid: Option<(Selector, &CompiledPolicy)>,
    ) -> Option<(PolicyHash, Instant)> {
        let mut state = self.lock();
        let old = state.policies.get(uid);
        let (entry, changed) = match (valid, old) {
            (Some((selector, compiled)), old) => {
                let json = compiled.to_json();
                let hash = PolicyHash::of(&json);
                let same =
                    old.filter(|old| old.published.as_ref().is_some_and(|published| published.hash == hash));
                let same_selector = old.is_some_and(|old| old.selects(&selector));
                if let Some(old) = same.filter(|old| !old.keep && same_selector) {
                    return Some((hash, old.since));
                }
                // A string that was written by the JSON writer is JSON.
                let published = RawValue::from_string(json).ok().map(|policy| Published { hash, policy });
                let since = same.map_or_else(Instant::now, |old| old.since);
                let sharers = Replicas::of_edit(compiled, old.map(|old| &old.sharers), same_selector);
                (Entry { key: key.clone(), selector, published, keep: false, since, sharers }, true)
            }
            (None, Some(old)) if old.keep => return None,
            (None, Some(old)) => (
                Entry {
                    key: key.clone(),
                    selector: old.selector.clone(),
                    published: old.published.clone(),
                    keep: true,
                    since: old.since,
                    sharers: old.sharers.clone(),
                },
                false,
            ),
            // Selects the whole namespace: whoever has the policy from before keeps it.
            (None, None) => (
                Entry {
                    key: key.clone(),
                    selector: Selector::default(),
                    published: None,
                    keep: true,
                    since: Instant::now(),
                    sharers: Replicas::default(),
                },
                true,
            ),
        };
        let answer = entry
            .published
            .as_ref()
            .filter(|_| !entry.keep)
            .map(|published| (published.hash.clone(), entry.since));
        state.policies.insert(uid.to_owned(), entry);
        drop(state);
        if changed {
            self.bump();
        }
        answer
    }

    /// A policy is gone.
    pub fn remove(&self, uid: &str) {
        if self.lock().policies.remove(uid).is_some() {
            self.bump();
        }
    }

    /// These pods share a policy as long as it has this selector, by their UIDs. Wakes the streams that it concerns, if
    /// anything has changed.
    pub fn set_sharers(&self, uid: &str, selector: &Selector, sharers: Vec<String>) {
        let mut state = self.lock();
        let State { policies, listeners, .. } = &mut *state;
        let Some(entry) = policies.get_mut(uid).filter(|entry| entry.selects(selector)) else { return };
        if !entry.sharers.look(sharers) {
            return;
        }
        // Those that are not among the sharers too: each of them is one more.
        for listener in listeners.values().filter(|listener| entry.concerns(&listener.identity)) {
            listener.live.notify_one();
        }
    }

    /// Which pods a policy that was valid once is about.
    #[must_use]
    pub fn selector(&self, uid: &str) -> Option<Selector> {
        let state = self.lock();
        state.policies.get(uid).filter(|entry| entry.published.is_some()).map(|entry| entry.selector.clone())
    }

    /// Rung when the pods change that share a policy with this one.
    #[must_use]
    pub fn live_changes(&self, pod_uid: &str) -> Option<Arc<Notify>> {
        self.lock().listeners.get(pod_uid).map(|listener| listener.live.clone())
    }

    /// What a pod should have now; with its policies only if `policies`. Nothing if it has no stream.
    #[must_use]
    pub fn due(&self, pod_uid: &str, policies: bool) -> Option<Due> {
        let state = self.lock();
        let listener = state.listeners.get(pod_uid)?;
        let mut due = Due {
            live: BTreeMap::new(),
            policies: policies.then(|| Policies {
                version: VERSION,
                full: true,
                policies: BTreeMap::new(),
                removed: Vec::new(),
                keep: Vec::new(),
            }),
            held: BTreeSet::new(),
            held_until: None,
        };
        for (uid, entry) in state.policies.iter().filter(|(_, entry)| entry.concerns(&listener.identity)) {
            if let Some(sharing) = entry.sharers.sharing_of(pod_uid) {
                due.live.insert(uid.clone(), sharing);
            }
            if let Some(until) = entry.sharers.held() {
                due.held.insert(uid.clone());
                due.held_until = Some(due.held_until.map_or(until, |first| first.min(until)));
                continue;
            }
            let Some(all) = &mut due.policies else { continue };
            match &entry.published {
                // An invalid edit changes nothing: whoever comes anew gets the last good one too.
                Some(published) => {
                    all.policies.insert(uid.clone(), published.clone());
                }
                None => all.keep.push(uid.clone()),
            }
        }
        Some(due)
    }

    /// Access to the store is this from now on.
    pub fn set_access(&self, access: StoreAccess) {
        let mut state = self.lock();
        if state.access.as_ref() != Some(&access) {
            state.access = Some(access);
            drop(state);
            self.open.send_modify(|open| open.access = true);
            self.bump();
        }
    }

    /// Access to the store.
    #[must_use]
    pub fn access(&self) -> Option<StoreAccess> {
        self.lock().access.clone()
    }

    /// Goes up with every change that listeners may have to hear of.
    #[must_use]
    pub fn version(&self) -> watch::Receiver<u64> {
        self.version.subscribe()
    }

    /// A stream begins. An older one of the same pod ends; what was said in it still counts for a while. The stream
    /// must end when the receiver closes.
    pub fn connect(self: &Arc<Self>, identity: Identity, stream: &str) -> mpsc::Receiver<()> {
        let (close, closed) = mpsc::channel(1);
        let mut state = self.lock();
        let old = state.listeners.remove(&identity.pod_uid);
        let (reports, store) =
            old.map_or((BTreeMap::new(), StoreReport::Unknown), |old| (old.reports, old.store));
        let listener = Listener {
            stream: stream.to_owned(),
            reports,
            store,
            lapses: Some(Instant::now() + LAPSE),
            ended: false,
            live: Arc::default(),
            _close: close,
            identity,
        };
        let pod_uid = listener.identity.pod_uid.clone();
        state.listeners.insert(pod_uid.clone(), listener);
        drop(state);
        // A sidecar that never says anything in its new stream: what it said in the old one lapses.
        self.look_again(&pod_uid, stream);
        closed
    }

    /// A stream has ended.
    pub fn disconnect(self: &Arc<Self>, pod_uid: &str, stream: &str) {
        let mut state = self.lock();
        let Some(listener) = state.listeners.get_mut(pod_uid).filter(|listener| listener.stream == stream)
        else {
            return;
        };
        listener.lapses = Some(Instant::now() + LAPSE);
        listener.ended = true;
        drop(state);
        self.look_again(pod_uid, stream);
    }

    /// When what a pod has said may have lapsed, its policies are looked at again, and a pod without a stream is
    /// forgotten.
    fn look_again(self: &Arc<Self>, pod_uid: &str, stream: &str) {
        let (hub, pod_uid, stream) = (self.clone(), pod_uid.to_owned(), stream.to_owned());
        tokio::spawn(async move {
            tokio::time::sleep(LAPSE).await;
            let mut state = hub.lock();
            let Some(listener) = state.listeners.get(&pod_uid).filter(|l| l.stream == stream && !l.counts())
            else {
                return;
            };
            let ended = listener.ended;
            let keys = state.keys_of(&pod_uid);
            if ended {
                state.listeners.remove(&pod_uid);
            }
            drop(state);
            hub.queue.add_all(keys);
        });
    }

    /// A pod is gone: its stream ends at once.
    pub fn pod_gone(&self, pod_uid: &str) {
        self.lock().listeners.remove(pod_uid);
    }

    /// A pod's labels are these now.
    pub fn pod_labels(&self, pod_uid: &str, labels: &BTreeMap<String, String>) {
        let mut state = self.lock();
        if let Some(listener) =
            state.listeners.get_mut(pod_uid).filter(|listener| listener.identity.labels != *labels)
        {
            listener.identity.labels.clone_from(labels);
            drop(state);
            self.bump();
        }
    }

    /// Takes a report. False if its stream is not there.
    pub fn report(&self, report: Report) -> bool {
        let mut state = self.lock();
        let found = state.listeners.iter().find(|(_, listener)| listener.stream == report.stream);
        let Some(pod_uid) = found.map(|(uid, _)| uid.clone()) else { return false };
        let keys = state.keys_of(&pod_uid);
        let known: BTreeMap<_, _> = report
            .policies
            .into_iter()
            .filter(|(uid, _)| state.policies.contains_key(uid))
            .map(|(uid, report)| (uid, shortened(report)))
            .collect();
        let Some(listener) = state.listeners.get_mut(&pod_uid) else { return false };
        let changed =
            listener.reports != known || listener.store != report.store || listener.lapses.is_some();
        listener.reports = known;
        listener.store = report.store;
        listener.lapses = None;
        drop(state);
        if changed {
            self.queue.add_all(keys);
        }
        true
    }

    /// What a pod has said about a policy.
    #[must_use]
    pub fn confirmation(&self, pod_uid: &str, policy_uid: &str, hash: &PolicyHash) -> Confirmation {
        let state = self.lock();
        let Some(listener) = state.listeners.get(pod_uid).filter(|listener| listener.counts()) else {
            return Confirmation::NotConnected;
        };
        match listener.reports.get(policy_uid) {
            Some(PolicyReport::Applied { hash: applied }) if applied == hash => Confirmation::Applied,
            Some(PolicyReport::Nacked { hash: refused, reason }) if refused == hash => {
                Confirmation::Refused(reason.clone())
            }
            _ => Confirmation::Other,
        }
    }

    /// What a pod has said about the store.
    #[must_use]
    pub fn store_voice(&self, pod_uid: &str) -> StoreVoice {
        let state = self.lock();
        state
            .listeners
            .get(pod_uid)
            .filter(|listener| listener.counts())
            .map(|listener| listener.store.clone())
    }

    /// How many streams there are.
    #[must_use]
    pub fn streams(&self) -> usize {
        self.lock().listeners.len()
    }

    fn bump(&self) {
        self.version.send_modify(|version| *version += 1);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is whole between any two statements that can panic.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn keys_of(&self, pod_uid: &str) -> Vec<PolicyKey> {
        let Some(listener) = self.listeners.get(pod_uid) else { return Vec::new() };
        self.policies
            .values()
            .filter(|entry| entry.concerns(&listener.identity))
            .map(|entry| entry.key.clone())
            .collect()
    }
}

impl Entry {
    fn concerns(&self, pod: &Identity) -> bool {
        self.key.namespace == pod.namespace && self.selector.matches(&pod.labels)
    }

    fn selects(&self, selector: &Selector) -> bool {
        self.selector.to_string() == selector.to_string()
    }
}

#[cfg(test)]
pub(super) mod tests {
    use std::time::Duration;

    use sluice_config::policy::{Consistency, Mode, OnStoreFailure};

    use super::*;

    pub(in crate::distribution) fn compiled(namespace: &str) -> CompiledPolicy {
        CompiledPolicy {
            namespace: namespace.into(),
            name: "p".into(),
            mode: Mode::Enforce,
            on_store_failure: OnStoreFailure::Allow,
            consistency: Consistency::Strict,
            client_address: None,
            limits: Vec::new(),
        }
    }

    pub(in crate::distribution) fn identity(labels: &[(&str, &str)]) -> Identity {
        Identity {
            namespace: "n".into(),
            pod: "pod".into(),
            pod_uid: "uid".into(),
            labels: labels.iter().map(|(k, v)| ((*k).into(), (*v).into())).collect(),
            expires: None,
        }
    }

    pub(in crate::distribution) fn key(namespace: &str) -> PolicyKey {
        PolicyKey { namespace: namespace.into(), name: "p".into() }
    }

    pub(in crate::distribution) fn selector(app: &str) -> Selector {
        [("app".to_owned(), app.to_owned())].into_iter().collect()
    }

    fn report(stream: &str, hash: &PolicyHash) -> Report {
        let applied = PolicyReport::Applied { hash: hash.clone() };
        Report {
            version: 1,
            stream: stream.into(),
            policies: [("1".into(), applied)].into(),
            store: StoreReport::Healthy,
        }
    }

    pub(in crate::distribution) fn policies(hub: &Hub) -> Option<Policies> {
        hub.due("uid", true)?.policies
    }

    #[tokio::test]
    async fn a_pod_is_given_only_what_concerns_it() {
        let hub = Arc::new(Hub::new(Arc::default()));
        hub.publish("1", &key("n"), Some((selector("a"), &compiled("n"))));
        hub.publish("2", &key("n"), Some((selector("b"), &compiled("n"))));
        hub.publish("3", &key("other"), Some((selector("a"), &compiled("other"))));
        let _closed = hub.connect(identity(&[("app", "a")]), "s");
        let uids = || policies(&hub).map(|all| all.policies.into_keys().collect::<Vec<_>>());
        assert_eq!(uids(), Some(vec!["1".to_owned()]));
        hub.pod_labels("uid", &[("app".to_owned(), "b".to_owned())].into());
        assert_eq!(uids(), Some(vec!["2".to_owned()]));
        hub.remove("2");
        assert_eq!(uids(), Some(vec![]));
        hub.pod_gone("uid");
        assert_eq!(uids(), None);
    }

    #[tokio::test(start_paused = true)]
    async fn a_confirmation_counts_for_this_hash_and_lapses_after_its_stream() {
        let hub = Arc::new(Hub::new(Arc::default()));
        let (hash, _) = hub.publish("1", &key("n"), Some((selector("a"), &compiled("n")))).unwrap();
        assert_eq!(hub.confirmation("uid", "1", &hash), Confirmation::NotConnected);
        let _closed = hub.connect(identity(&[("app", "a")]), "s");
        assert_eq!(hub.confirmation("uid", "1", &hash), Confirmation::Other);
        assert!(!hub.report(report("guess", &hash)));
        assert!(hub.report(report("s", &hash)));
        assert_eq!(hub.confirmation("uid", "1", &hash), Confirmation::Applied);
        assert_eq!(hub.confirmation("uid", "1", &PolicyHash::of("another")), Confirmation::Other);
        hub.disconnect("uid", "s");
        tokio::time::advance(LAPSE - Duration::from_secs(1)).await;
        assert_eq!(hub.confirmation("uid", "1", &hash), Confirmation::Applied);
        tokio::time::advance(Duration::from_secs(2)).await;
        assert_eq!(hub.confirmation("uid", "1", &hash), Confirmation::NotConnected);
    }

    #[tokio::test(start_paused = true)]
    async fn a_new_stream_must_speak_before_the_old_one_s_word_lapses() {
        let hub = Arc::new(Hub::new(Arc::default()));
        let (hash, _) = hub.publish("1", &key("n"), Some((selector("a"), &compiled("n")))).unwrap();
        let _first = hub.connect(identity(&[("app", "a")]), "s");
        hub.report(report("s", &hash));
        hub.queue.next().await;
        let mut first = hub.connect(identity(&[("app", "a")]), "t");
        hub.disconnect("uid", "s");
        assert_eq!(hub.confirmation("uid", "1", &hash), Confirmation::Applied);
        // Whoever writes status is told when that is so.
        assert_eq!(hub.queue.next().await.into_iter().collect::<Vec<_>>(), [key("n")]);
        assert_eq!(hub.confirmation("uid", "1", &hash), Confirmation::NotConnected);
        assert!(first.try_recv().is_err());
    }

    #[tokio::test]
    async fn an_invalid_edit_keeps_what_is_in_force() {
        let hub = Arc::new(Hub::new(Arc::default()));
        let _closed = hub.connect(identity(&[("app", "a")]), "s");
        hub.publish("1", &key("n"), Some((selector("a"), &compiled("n"))));
        assert_eq!(hub.publish("1", &key("n"), None), None);
        assert!(policies(&hub).unwrap().policies.contains_key("1"));
        hub.publish("2", &key("n"), None);
        assert_eq!(policies(&hub).unwrap().keep, ["2"]);
    }

    #[tokio::test]
    async fn streams_wait_for_all_policies_and_for_access_to_the_store() {
        let hub = Hub::new(Arc::default());
        let access: StoreAccess = serde_json::from_value(serde_json::json!({
            "url": "memory:", "latencyBudgetMillis": 50, "keySecret": "AAAAAAAAAAAAAAAAAAAAAA==", "prefix": "sluice:",
        }))
        .unwrap();
        let now = Duration::ZERO;
        assert!(tokio::time::timeout(now, hub.published()).await.is_err());
        hub.open();
        assert!(tokio::time::timeout(now, hub.published()).await.is_ok(), "status needs no store");
        assert!(tokio::time::timeout(now, hub.opened()).await.is_err());
        hub.set_access(access);
        assert!(tokio::time::timeout(now, hub.opened()).await.is_ok());
    }
}
