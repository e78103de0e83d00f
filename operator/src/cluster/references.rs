//! Secrets and ConfigMaps that other objects refer to. Each is watched by its name while an object refers to it, so the operator needs
//! no right to any other: the request names its object, and RBAC can grant it by `resourceNames`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::{Arc, Mutex, Weak};

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::{ByteString, NamespaceResourceScope};
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;
use sluice_crds::policy::ContentKind;
use tokio::sync::Notify;
use tokio::task::AbortHandle;

use crate::cluster::watch::Failure;
use crate::locks::lock;
use crate::names::ObjectKey;

/// Everything that each owner wants to be watched.
pub struct Wanted<O, T>(BTreeMap<O, BTreeSet<T>>);

impl<O, T> Default for Wanted<O, T> {
    fn default() -> Self {
        Self(BTreeMap::new())
    }
}

impl<O: Ord + Clone, T: Ord + Clone> Wanted<O, T> {
    /// Sets everything that an owner wants. Reports whether that has changed.
    pub fn set(&mut self, owner: &O, things: BTreeSet<T>) -> bool {
        match self.0.get(owner) {
            Some(before) if *before == things => false,
            None if things.is_empty() => false,
            _ if things.is_empty() => self.0.remove(owner).is_some(),
            _ => {
                self.0.insert(owner.clone(), things);
                true
            }
        }
    }

    /// Returns everything that is wanted.
    pub fn all(&self) -> BTreeSet<T> {
        self.0.values().flatten().cloned().collect()
    }

    /// Returns the owners that want something.
    pub fn owners_of(&self, thing: &T) -> Vec<O> {
        let owners = self.0.iter().filter(|(_, things)| things.contains(thing));
        owners.map(|(owner, _)| owner.clone()).collect()
    }

    /// Iterates over everything that an owner wants.
    pub fn of(&self, owner: &O) -> impl Iterator<Item = &T> {
        self.0.get(owner).into_iter().flatten()
    }
}

/// Largest number of objects of a namespace that are watched at the same time.
const MAX_OF_NAMESPACE: usize = 64;
/// Largest size of the content of a namespace, and of all content, in bytes.
const MAX_BYTES_OF_NAMESPACE: usize = 24 << 20;
const MAX_BYTES: usize = 64 << 20;

/// A Secret or ConfigMap that an object refers to.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct ContentKey {
    /// Kind of the object.
    pub kind: ContentKind,
    /// Key of the object.
    pub object: ObjectKey,
}

impl fmt::Display for ContentKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.object)
    }
}

/// The content of a Secret or ConfigMap.
#[derive(Debug, Clone, PartialEq)]
pub struct Content {
    /// Name of the object.
    pub name: String,
    /// Type of a Secret.
    pub type_: Option<String>,
    /// The fields.
    pub data: BTreeMap<String, ByteString>,
}

impl From<Secret> for Content {
    fn from(secret: Secret) -> Self {
        let Secret { metadata, type_, data, .. } = secret;
        Self { name: metadata.name.unwrap_or_default(), type_, data: data.unwrap_or_default() }
    }
}

impl From<ConfigMap> for Content {
    fn from(config_map: ConfigMap) -> Self {
        let ConfigMap { metadata, data, binary_data, .. } = config_map;
        let texts = data.into_iter().flatten().map(|(key, text)| (key, ByteString(text.into_bytes())));
        let data = texts.chain(binary_data.into_iter().flatten()).collect();
        Self { name: metadata.name.unwrap_or_default(), type_: None, data }
    }
}

/// State of an object that another refers to.
#[derive(Debug, Clone, PartialEq)]
pub enum Reference {
    /// It has not been read yet.
    Pending,
    /// It exists.
    Found(Arc<Content>),
    /// It does not exist.
    NotFound,
    /// The operator has no right to read it.
    NotPermitted,
    /// The API server does not answer, or not as expected.
    Unreadable(String),
    /// There is no room for it: the namespace, or all together, refer to too many or too large objects.
    TooMany,
}

impl Reference {
    /// Returns the size of the content, in bytes.
    fn size(&self) -> usize {
        match self {
            Self::Found(content) => content.data.values().map(|value| value.0.len()).sum(),
            Self::Pending | Self::NotFound | Self::NotPermitted | Self::Unreadable(_) | Self::TooMany => 0,
        }
    }
}

/// The objects that others, the owners, refer to.
pub struct References<O> {
    client: kube::Client,
    shared: Arc<Shared<O>>,
}

/// The part that the watches change.
struct Shared<O> {
    state: Mutex<State<O>>,
    /// Notified when an object has been read.
    read: Notify,
    /// Receives the owners that a change may affect.
    on_change: Box<dyn Fn(Vec<O>) + Send + Sync>,
}

struct State<O> {
    wanted: Wanted<O, ContentKey>,
    watched: BTreeMap<ContentKey, Watched>,
    /// Number of watches that were started.
    started: u64,
}

/// An object that is watched.
struct Watched {
    /// The watch of the object. One that was ended may still report a change.
    id: u64,
    reference: Reference,
    task: AbortHandle,
}

impl Drop for Watched {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl<O: Ord + Clone + Send + 'static> References<O> {
    /// Watches nothing yet. Passes the owners that a change may affect to `on_change`.
    pub fn new(client: kube::Client, on_change: impl Fn(Vec<O>) + Send + Sync + 'static) -> Self {
        let state = State { wanted: Wanted::default(), watched: BTreeMap::new(), started: 0 };
        let shared = Shared { state: Mutex::new(state), read: Notify::new(), on_change: Box::new(on_change) };
        Self { client, shared: Arc::new(shared) }
    }

    /// Watches these objects for an owner, and no others for it. Must be called within a tokio runtime.
    pub fn want(&self, owner: &O, objects: BTreeSet<ContentKey>) {
        let mut state = lock(&self.shared.state);
        if !state.wanted.set(owner, objects) {
            return;
        }
        let State { wanted, watched, started } = &mut *state;
        let wanted = wanted.all();
        // Objects for which there was no room are read again, because there may be some now.
        watched.retain(|key, watched| wanted.contains(key) && watched.reference != Reference::TooMany);
        let mut counts = BTreeMap::<String, usize>::new();
        for key in watched.keys() {
            *counts.entry(key.object.namespace.clone()).or_default() += 1;
        }
        for key in wanted {
            if watched.contains_key(&key) {
                continue;
            }
            let of_namespace = counts.entry(key.object.namespace.clone()).or_default();
            if *of_namespace < MAX_OF_NAMESPACE {
                *of_namespace += 1;
                *started += 1;
                let new = self.start(&key, *started);
                watched.insert(key, new);
            }
        }
    }

    /// Returns what is known of an object that an owner wants.
    pub fn get(&self, key: &ContentKey) -> Reference {
        let state = lock(&self.shared.state);
        state.watched.get(key).map_or(Reference::TooMany, |watched| watched.reference.clone())
    }

    /// Waits until everything that an owner wants has been read.
    pub async fn read(&self, owner: &O) {
        loop {
            let notified = self.shared.read.notified();
            if !lock(&self.shared.state).is_pending(owner) {
                return;
            }
            notified.await;
        }
    }

    fn start(&self, key: &ContentKey, id: u64) -> Watched {
        let (client, shared) = (self.client.clone(), Arc::downgrade(&self.shared));
        let task = match key.kind {
            ContentKind::Secret => tokio::spawn(follow::<Secret, O>(client, key.clone(), id, shared)),
            ContentKind::ConfigMap => tokio::spawn(follow::<ConfigMap, O>(client, key.clone(), id, shared)),
        };
        Watched { id, reference: Reference::Pending, task: task.abort_handle() }
    }
}

impl<O: Ord + Clone> State<O> {
    /// Reports whether content can be kept beside the other content of its namespace, and of all.
    fn has_room(&self, key: &ContentKey, new: &Reference) -> bool {
        let others = self.watched.iter().filter(|(other, _)| *other != key);
        let sizes: Vec<_> = others.map(|(other, watched)| (other, watched.reference.size())).collect();
        let of_namespace = sizes.iter().filter(|(other, _)| other.object.namespace == key.object.namespace);
        let of_namespace = of_namespace.map(|(_, size)| size).sum::<usize>();
        let total = sizes.iter().map(|(_, size)| size).sum::<usize>();
        new.size() == 0
            || (of_namespace + new.size() <= MAX_BYTES_OF_NAMESPACE && total + new.size() <= MAX_BYTES)
    }

    fn is_pending(&self, owner: &O) -> bool {
        let is_pending =
            |key| self.watched.get(key).is_some_and(|watched| watched.reference == Reference::Pending);
        self.wanted.of(owner).any(is_pending)
    }
}

impl<O: Ord + Clone> Shared<O> {
    /// Records the result of a watch. A failure other than a missing right does not replace what was read before.
    fn set(&self, key: &ContentKey, id: u64, new: Reference) {
        let mut state = lock(&self.state);
        let new = if state.has_room(key, &new) { new } else { Reference::TooMany };
        let Some(watched) = state.watched.get_mut(key).filter(|watched| watched.id == id) else { return };
        if watched.reference == new
            || matches!((&watched.reference, &new), (Reference::Found(_), Reference::Unreadable(_)))
        {
            return;
        }
        watched.reference = new;
        let owners = state.wanted.owners_of(key);
        drop(state);
        self.read.notify_waiters();
        (self.on_change)(owners);
    }
}

/// Keeps the state of one object up to date.
async fn follow<K, O>(client: kube::Client, key: ContentKey, id: u64, shared: Weak<Shared<O>>)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Into<Content>
        + DeserializeOwned
        + Clone
        + fmt::Debug
        + Send
        + 'static,
    O: Ord + Clone,
{
    let api: Api<K> = Api::namespaced(client, &key.object.namespace);
    let config = watcher::Config::default().fields(&format!("metadata.name={}", key.object.name));
    let mut stream = std::pin::pin!(watcher::watcher(api, config).default_backoff());
    let found = |object: K| Reference::Found(Arc::new(object.into()));
    let (mut listed, mut failure) = (None, Failure::default());
    while let Some(event) = stream.next().await {
        event.iter().for_each(|event| failure.end(event));
        let new = match event {
            Ok(Event::Init) => {
                listed = None;
                continue;
            }
            Ok(Event::InitApply(object)) => {
                listed = Some(object);
                continue;
            }
            Ok(Event::InitDone) => listed.take().map_or(Reference::NotFound, found),
            Ok(Event::Apply(object)) => found(object),
            Ok(Event::Delete(_)) => Reference::NotFound,
            Err(error) if is_forbidden(&error) => Reference::NotPermitted,
            Err(error) => Reference::Unreadable(failure.log(&key.to_string(), &error)),
        };
        let Some(shared) = shared.upgrade() else { return };
        shared.set(&key, id, new);
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

/// Returns the commands that create a Role and a RoleBinding with this name, with which a namespace lets the operator read
/// objects of one kind.
pub fn grant<'a>(
    namespace: &str,
    role: &str,
    kind: ContentKind,
    objects: impl IntoIterator<Item = &'a str>,
    operator_namespace: &str,
) -> String {
    let names: String = objects.into_iter().map(|name| format!(" --resource-name={name}")).collect();
    format!(
        "`kubectl -n {namespace} create role {role} --verb=get,list,watch --resource={}{names} --dry-run=client -o yaml | \
         kubectl apply -f - && kubectl -n {namespace} create rolebinding {role} --role={role} \
         --serviceaccount={operator_namespace}:sluice-operator --dry-run=client -o yaml | kubectl apply -f -`",
        kind.resource()
    )
}
