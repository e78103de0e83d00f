//! Secrets and ConfigMaps that other objects refer to. Each is watched by its name while an object refers to it, so the operator needs
//! no right to any other: the request names its object, and RBAC can grant it by `resourceNames`.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use futures::StreamExt as _;
use k8s_openapi::api::core::v1::{ConfigMap, Secret};
use k8s_openapi::{ByteString, NamespaceResourceScope};
use kube::Resource;
use kube::api::Api;
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use serde::de::DeserializeOwned;
use sluice_crds::policy::ContentKind;

use crate::cluster::wanted::{Finder, Wanted, Watched};
use crate::cluster::watch::Failure;
use crate::names::ObjectKey;

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
    wanted: Wanted<O, ContentKey, Reference>,
}

impl<O: Ord + Clone + Send + 'static> References<O> {
    /// Watches nothing yet. Passes the owners that a change may affect to `on_change`.
    pub fn new(client: kube::Client, on_change: impl Fn(Vec<O>) + Send + Sync + 'static) -> Self {
        Self { client, wanted: Wanted::new(on_change) }
    }

    /// Watches these objects for an owner, and no others for it. Must be called within a tokio runtime.
    pub fn want(&self, owner: &O, objects: BTreeSet<ContentKey>) {
        // Objects for which there was no room are read again, because there may be some now.
        let keep = |found: &Reference| *found != Reference::TooMany;
        self.wanted.want(owner, objects, keep, |watched, finder| {
            let namespace = &finder.thing.object.namespace;
            let of_namespace = watched.keys().filter(|key| key.object.namespace == *namespace).count();
            let client = self.client.clone();
            let start = || match finder.thing.kind {
                ContentKind::Secret => tokio::spawn(follow::<Secret, O>(client, finder)),
                ContentKind::ConfigMap => tokio::spawn(follow::<ConfigMap, O>(client, finder)),
            };
            (of_namespace < MAX_OF_NAMESPACE).then(|| (Reference::Pending, start().abort_handle()))
        });
    }

    /// Returns what is known of an object that an owner wants.
    pub fn get(&self, key: &ContentKey) -> Reference {
        self.wanted.get(key, Reference::clone).unwrap_or(Reference::TooMany)
    }

    /// Waits until everything that an owner wants has been read.
    pub async fn read(&self, owner: &O) {
        self.wanted.found(owner, |found| *found != Reference::Pending).await;
    }
}

/// Reports whether content can be kept beside the other content of its namespace, and of all.
fn has_room(watched: &BTreeMap<ContentKey, Watched<Reference>>, key: &ContentKey, new: &Reference) -> bool {
    let others = watched.iter().filter(|(other, _)| *other != key);
    let sizes: Vec<_> = others.map(|(other, watched)| (other, watched.found.size())).collect();
    let of_namespace = sizes.iter().filter(|(other, _)| other.object.namespace == key.object.namespace);
    let of_namespace = of_namespace.map(|(_, size)| size).sum::<usize>();
    let total = sizes.iter().map(|(_, size)| size).sum::<usize>();
    new.size() == 0
        || (of_namespace + new.size() <= MAX_BYTES_OF_NAMESPACE && total + new.size() <= MAX_BYTES)
}

/// Takes what the watch of an object finds. A failure other than a missing right does not replace what was read before.
fn set(key: &ContentKey, watched: &mut BTreeMap<ContentKey, Watched<Reference>>, new: Reference) -> bool {
    let new = if has_room(watched, key, &new) { new } else { Reference::TooMany };
    let Some(Watched { found, .. }) = watched.get_mut(key) else { return false };
    let is_worse = matches!((&*found, &new), (Reference::Found(_), Reference::Unreadable(_)));
    !is_worse && std::mem::replace(found, new.clone()) != new
}

/// Keeps the state of one object up to date.
async fn follow<K, O>(client: kube::Client, finder: Finder<O, ContentKey, Reference>)
where
    K: Resource<DynamicType = (), Scope = NamespaceResourceScope>
        + Into<Content>
        + DeserializeOwned
        + Clone
        + fmt::Debug
        + Send
        + 'static,
    O: Ord + Clone + Send,
{
    let key = &finder.thing;
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
        finder.change(|key, watched| set(key, watched, new));
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
