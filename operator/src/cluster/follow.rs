//! One loop for all watches: reconnects with backoff, and turns a watch's restart into the changes that it means.

use std::collections::BTreeMap;
use std::fmt::Debug;

use futures::{Stream, StreamExt as _};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{Event, Result};
use kube::{Resource, ResourceExt as _};

/// What a watch says of one object.
pub enum Change<K> {
    /// It is there, or other than before.
    Applied(K),
    /// It is gone.
    Gone {
        /// Its namespace, empty for objects without.
        namespace: String,
        /// Its name.
        name: String,
        /// Its UID.
        uid: String,
    },
    /// All objects that there were at the start have been said.
    Synced,
}

/// Follows a watch for as long as the process lives.
pub async fn follow<K>(
    stream: impl Stream<Item = Result<Event<K>>> + Send,
    mut changed: impl FnMut(Change<K>) + Send,
) where
    K: Resource + Clone + Debug + Send + 'static,
{
    let mut stream = std::pin::pin!(stream.default_backoff());
    let mut known: BTreeMap<(String, String), String> = BTreeMap::new();
    let mut fresh: BTreeMap<(String, String), String> = BTreeMap::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(Event::Init) => fresh.clear(),
            Ok(Event::InitApply(object)) => {
                fresh.insert(key(&object), object.uid().unwrap_or_default());
                replaced(known.get(&key(&object)), &object, &mut changed);
                changed(Change::Applied(object));
            }
            Ok(Event::InitDone) => {
                for ((namespace, name), uid) in &known {
                    if !fresh.contains_key(&(namespace.clone(), name.clone())) {
                        changed(Change::Gone {
                            namespace: namespace.clone(),
                            name: name.clone(),
                            uid: uid.clone(),
                        });
                    }
                }
                known = std::mem::take(&mut fresh);
                changed(Change::Synced);
            }
            Ok(Event::Apply(object)) => {
                let old = known.insert(key(&object), object.uid().unwrap_or_default());
                replaced(old.as_ref(), &object, &mut changed);
                changed(Change::Applied(object));
            }
            Ok(Event::Delete(object)) => {
                let (namespace, name) = key(&object);
                let uid = known
                    .remove(&(namespace.clone(), name.clone()))
                    .or_else(|| object.uid())
                    .unwrap_or_default();
                changed(Change::Gone { namespace, name, uid });
            }
            Err(error) => tracing::warn!(kind = std::any::type_name::<K>(), "watch: {error}"),
        }
    }
}

/// An object of the same name and another UID has taken an older one's place: the older one is gone.
fn replaced<K: Resource>(old: Option<&String>, object: &K, changed: &mut impl FnMut(Change<K>)) {
    if let Some(old) = old.filter(|old| Some(*old) != object.meta().uid.as_ref()) {
        let (namespace, name) = key(object);
        changed(Change::Gone { namespace, name, uid: old.clone() });
    }
}

fn key<K: Resource>(object: &K) -> (String, String) {
    (object.meta().namespace.clone().unwrap_or_default(), object.meta().name.clone().unwrap_or_default())
}
