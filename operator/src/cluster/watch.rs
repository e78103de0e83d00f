//! The loop that all watches share. It reconnects with backoff and reports a watch's restart as the changes
//! that happened meanwhile.
//!
//! The kinds of Sluice are watched as untyped objects, so that one unreadable object does not stop the watch of the others. A watch
//! reports objects by the CustomResourceDefinition that the API server had when the watch began: a field that was added later is
//! missing from everything that it reports. So the objects are listed again when their definition has changed.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Error, Event, Result};
use kube::{Client, Resource, ResourceExt as _};
use sluice_host::logging::told;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::locks::{Latch, lock};
use crate::names::ObjectKey;

#[cfg(test)]
mod tests;

#[cfg(test)]
mod own_kinds_tests;

/// A change that a watch reports.
#[derive(Debug, PartialEq, Eq)]
pub enum Change<K> {
    /// An object was created or changed.
    Applied(K),
    /// An object was deleted.
    Deleted {
        /// Key of the object; without a namespace for cluster-scoped objects.
        key: ObjectKey,
        /// UID of the object.
        uid: String,
    },
    /// All objects that existed at the start, or at a restart, of the watch have been reported.
    Listed,
}

/// The reason for which a watch fails. It is logged once, however often the watch is tried again.
#[derive(Default)]
pub struct Failure(Option<String>);

impl Failure {
    /// Logs an error, unless it is the one before. Returns its text.
    pub fn log(&mut self, of: &str, error: &Error) -> String {
        let error = told(error);
        if self.0.as_ref() != Some(&error) {
            tracing::warn!(of, "a watch fails and is tried again: {error}");
            self.0 = Some(error.clone());
        }
        error
    }

    /// Takes an event. The one that begins a list does not tell yet whether the watch works.
    pub fn end<K>(&mut self, event: &Event<K>) {
        if !matches!(event, Event::Init) {
            self.0 = None;
        }
    }
}

/// Follows a watch and passes on its changes. An object that is deleted and created again under its name is
/// reported as deleted before it is reported as applied.
pub async fn follow<K>(
    stream: impl Stream<Item = Result<Event<K>>> + Send,
    mut on_change: impl FnMut(Change<K>) + Send,
) where
    K: Resource + Clone + Debug + Send + 'static,
{
    let mut stream = std::pin::pin!(stream.default_backoff());
    // UIDs: of all objects that have been reported, and of those of the list that is being read.
    let (mut known, mut listing) = (BTreeMap::new(), BTreeMap::new());
    let mut failure = Failure::default();
    while let Some(event) = stream.next().await {
        event.iter().for_each(|event| failure.end(event));
        match event {
            // A list that broke off has been reported in part.
            Ok(Event::Init) => known.append(&mut listing),
            Ok(Event::InitApply(object)) => {
                listing.insert(key_of(&object), object.uid().unwrap_or_default());
                report_replaced(known.get(&key_of(&object)), &object, &mut on_change);
                on_change(Change::Applied(object));
            }
            Ok(Event::InitDone) => {
                for (key, uid) in std::mem::replace(&mut known, std::mem::take(&mut listing)) {
                    if !known.contains_key(&key) {
                        on_change(Change::Deleted { key, uid });
                    }
                }
                on_change(Change::Listed);
            }
            Ok(Event::Apply(object)) => {
                let old = known.insert(key_of(&object), object.uid().unwrap_or_default());
                report_replaced(old.as_ref(), &object, &mut on_change);
                on_change(Change::Applied(object));
            }
            Ok(Event::Delete(object)) => {
                let key = key_of(&object);
                let uid = known.remove(&key).or_else(|| object.uid()).unwrap_or_default();
                on_change(Change::Deleted { key, uid });
            }
            Err(error) => drop(failure.log(std::any::type_name::<K>(), &error)),
        }
    }
}

/// Reports an object as deleted if an object of the same name and another UID has taken its place.
fn report_replaced<K: Resource>(old_uid: Option<&String>, object: &K, on_change: &mut impl FnMut(Change<K>)) {
    if let Some(old) = old_uid.filter(|old| Some(*old) != object.meta().uid.as_ref()) {
        on_change(Change::Deleted { key: key_of(object), uid: old.clone() });
    }
}

/// Returns the key of an object.
pub fn key_of<K: Resource>(object: &K) -> ObjectKey {
    let metadata = object.meta();
    ObjectKey::new(metadata.namespace.clone().unwrap_or_default(), metadata.name.clone().unwrap_or_default())
}

/// When the objects are listed again after their definition has changed. Some API servers may still read it when another one has reported
/// it, for which Kubernetes itself allows five seconds when a definition is new. They end the watches that they began before within two
/// minutes, so the last list has what no such watch reported:
/// <https://github.com/kubernetes/apiextensions-apiserver/blob/v0.34.0/pkg/apiserver/customresource_handler.go> (`tearDown`).
const LIST_AGAIN: [Duration; 3] = [Duration::ZERO, Duration::from_secs(5), Duration::from_secs(150)];

/// Returns the API of a kind as untyped objects, in one namespace or in all.
pub fn api<K: Resource<DynamicType = ()>>(client: Client, namespace: Option<&str>) -> Api<DynamicObject> {
    let resource = ApiResource::erase::<K>(&());
    match namespace {
        Some(namespace) => Api::namespaced_with(client, namespace, &resource),
        None => Api::all_with(client, &resource),
    }
}

/// Follows all objects of a kind, and lists them again when the definition of the kind has changed.
pub async fn follow_all<K: Resource<DynamicType = ()>>(
    client: Client,
    on_change: impl FnMut(Change<DynamicObject>) + Send,
) {
    let (list, lists) = watch::channel(());
    let objects = api::<K>(client.clone(), None);
    let begin = move || watcher::watcher(objects.clone(), watcher::Config::default()).boxed();
    let name = format!("{}.{}", K::plural(&()), K::group(&()));
    let definition = watcher::watcher(
        Api::<PartialObjectMeta<CustomResourceDefinition>>::all(client),
        watcher::Config::default().fields(&format!("metadata.name={name}")),
    );
    tokio::join!(follow(restarted(begin, lists), on_change), ask_for_lists(definition, &list));
}

/// Returns what a watch reports. It begins, and begins again, when a list is asked for.
fn restarted<S: Stream + Send + Unpin>(
    begin: impl Fn() -> S + Send,
    lists: watch::Receiver<()>,
) -> impl Stream<Item = S::Item> + Send {
    stream::unfold((None::<S>, lists, begin), |(mut objects, mut lists, begin)| async move {
        loop {
            let next = async {
                match &mut objects {
                    Some(objects) => objects.next().await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                biased;
                Ok(()) = lists.changed() => objects = Some(begin()),
                event = next => return event.map(|event| (event, (objects, lists, begin))),
            }
        }
    })
}

/// Asks for the first list when the definition has been read or cannot be read, and for others when it has changed.
async fn ask_for_lists(
    definition: impl Stream<Item = watcher::Result<Event<PartialObjectMeta<CustomResourceDefinition>>>> + Send,
    list: &watch::Sender<()>,
) {
    let mut definition = std::pin::pin!(definition.default_backoff());
    let (mut has_begun, mut known, mut failure) = (false, None, Failure::default());
    // The latest is the first.
    let mut due: Vec<Instant> = Vec::new();
    loop {
        let next_list = async {
            match due.last() {
                Some(at) => sleep_until(*at).await,
                None => std::future::pending().await,
            }
        };
        let event = tokio::select! {
            () = next_list => {
                due.pop();
                list.send_replace(());
                continue;
            }
            event = definition.next() => event,
        };
        match event {
            Some(Ok(event)) => {
                failure.end(&event);
                if let Event::InitApply(object) | Event::Apply(object) = &event {
                    let found = Some((object.metadata.uid.clone(), object.metadata.generation));
                    if has_begun && known != found {
                        let now = Instant::now();
                        due = LIST_AGAIN.iter().rev().map(|&delay| now + delay).collect();
                    }
                    known = found;
                }
                if !matches!(event, Event::InitDone) {
                    continue;
                }
            }
            Some(Err(error)) => drop(failure.log(std::any::type_name::<CustomResourceDefinition>(), &error)),
            None => return,
        }
        if !std::mem::replace(&mut has_begun, true) {
            due.push(Instant::now());
        }
    }
}

/// All objects of a kind of Sluice.
#[derive(Default)]
pub struct Untyped {
    objects: Mutex<BTreeMap<ObjectKey, Arc<DynamicObject>>>,
    listed: Latch,
}

impl Untyped {
    /// Keeps the table up to date and calls `on_change` after each change.
    pub async fn watch<K: Resource<DynamicType = ()>>(
        &self,
        client: Client,
        mut on_change: impl FnMut() + Send,
    ) {
        follow_all::<K>(client, |change| {
            match change {
                Change::Applied(object) => {
                    lock(&self.objects).insert(key_of(&object), Arc::new(object));
                }
                Change::Deleted { key, .. } => drop(lock(&self.objects).remove(&key)),
                Change::Listed => self.listed.set(),
            }
            on_change();
        })
        .await;
    }

    /// Returns all objects once they have been listed.
    pub fn all(&self) -> Option<BTreeMap<ObjectKey, Arc<DynamicObject>>> {
        self.listed.is_set().then(|| lock(&self.objects).clone())
    }
}
