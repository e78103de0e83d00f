//! The loop that all watches share. It reconnects with backoff and reports a watch's restart as the changes
//! that happened meanwhile.

use std::collections::BTreeMap;
use std::fmt::Debug;

use futures::{Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Error, Event, Result};
use kube::{Resource, ResourceExt as _};
use sluice_host::logging::told;

#[cfg(test)]
mod tests;

/// A change that a watch reports.
#[derive(Debug, PartialEq, Eq)]
pub enum Change<K> {
    /// An object was created or changed.
    Applied(K),
    /// An object was deleted.
    Deleted {
        /// Namespace of the object; empty for cluster-scoped objects.
        namespace: String,
        /// Name of the object.
        name: String,
        /// UID of the object.
        uid: String,
    },
    /// All objects that existed at the start, or at a restart, of the watch have been reported.
    Listed,
}

/// A change of an object that may affect the policies of a namespace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NamespaceChange<'a> {
    /// An object in this namespace, or the namespace itself, has changed.
    Changed(&'a str),
    /// All objects have been listed.
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
    // UIDs by namespace and name: all objects that have been reported, and those of the list that is being
    // read.
    let mut known: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut listing: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut failure = Failure::default();
    while let Some(event) = stream.next().await {
        event.iter().for_each(|event| failure.end(event));
        match event {
            // A list that broke off has been reported in part.
            Ok(Event::Init) => known.append(&mut listing),
            Ok(Event::InitApply(object)) => {
                listing.insert(name_of(&object), object.uid().unwrap_or_default());
                report_replaced(known.get(&name_of(&object)), &object, &mut on_change);
                on_change(Change::Applied(object));
            }
            Ok(Event::InitDone) => {
                let listed = std::mem::take(&mut listing);
                for (full_name, uid) in std::mem::replace(&mut known, listed) {
                    if !known.contains_key(&full_name) {
                        let (namespace, name) = full_name;
                        on_change(Change::Deleted { namespace, name, uid });
                    }
                }
                on_change(Change::Listed);
            }
            Ok(Event::Apply(object)) => {
                let old = known.insert(name_of(&object), object.uid().unwrap_or_default());
                report_replaced(old.as_ref(), &object, &mut on_change);
                on_change(Change::Applied(object));
            }
            Ok(Event::Delete(object)) => {
                let (namespace, name) = name_of(&object);
                let uid = known
                    .remove(&(namespace.clone(), name.clone()))
                    .or_else(|| object.uid())
                    .unwrap_or_default();
                on_change(Change::Deleted { namespace, name, uid });
            }
            Err(error) => drop(failure.log(std::any::type_name::<K>(), &error)),
        }
    }
}

/// Reports an object as deleted if an object of the same name and another UID has taken its place.
fn report_replaced<K: Resource>(old_uid: Option<&String>, object: &K, on_change: &mut impl FnMut(Change<K>)) {
    if let Some(old) = old_uid.filter(|old| Some(*old) != object.meta().uid.as_ref()) {
        let (namespace, name) = name_of(object);
        on_change(Change::Deleted { namespace, name, uid: old.clone() });
    }
}

fn name_of<K: Resource>(object: &K) -> (String, String) {
    (object.meta().namespace.clone().unwrap_or_default(), object.meta().name.clone().unwrap_or_default())
}
