//! Watches of the kinds of Sluice, as untyped objects, so that one unreadable object does not stop the watch of the others.
//!
//! A watch reports objects by the CustomResourceDefinition that the API server had when the watch began: a field that was added later is
//! missing from everything that it reports. So the objects are listed again when their definition has changed.

use std::time::Duration;

use futures::{Stream, StreamExt as _, stream};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::api::{Api, ApiResource, DynamicObject, PartialObjectMeta};
use kube::runtime::WatchStreamExt as _;
use kube::runtime::watcher::{self, Event};
use kube::{Client, Resource};
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::cluster::watch::{Change, Failure, follow};

/// When the objects are listed again after their definition has changed. Some API servers may still read it when another one has reported
/// it, for which Kubernetes itself allows five seconds when a definition is new. They end the watches that they began before within two
/// minutes, so the last list has what no such watch reported:
/// <https://github.com/kubernetes/apiextensions-apiserver/blob/v0.34.0/pkg/apiserver/customresource_handler.go> (`tearDown`).
const LIST_AGAIN: [Duration; 3] = [Duration::ZERO, Duration::from_secs(5), Duration::from_secs(150)];

/// Returns the API of a kind as untyped objects, in one namespace or in all.
#[must_use]
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

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use futures::channel::mpsc;

    use super::*;

    type Definition = PartialObjectMeta<CustomResourceDefinition>;

    fn definition(generation: i64) -> Definition {
        let mut definition = Definition::default();
        definition.metadata.uid = Some("1".into());
        definition.metadata.generation = Some(generation);
        definition
    }

    #[tokio::test(start_paused = true)]
    async fn the_objects_are_listed_when_their_definition_is_known_and_again_when_it_has_changed() {
        let (events, stream) = mpsc::unbounded();
        let (list, mut lists) = watch::channel(());
        tokio::spawn(async move { ask_for_lists(stream, &list).await });
        let began = Instant::now();
        // Returns the seconds after which lists are asked for, if so many are.
        let mut listed = async |count: usize| {
            let mut at = Vec::new();
            for _ in 0..count {
                lists.changed().await.unwrap();
                at.push(began.elapsed().as_secs());
            }
            tokio::time::sleep(Duration::from_secs(1000)).await;
            assert!(!lists.has_changed().unwrap());
            at
        };
        for event in [Event::Init, Event::InitApply(definition(1)), Event::InitDone] {
            events.unbounded_send(Ok(event)).unwrap();
        }
        assert_eq!(listed(1).await, [0]);
        // A watch that was begun again.
        for event in [Event::Init, Event::InitApply(definition(1)), Event::InitDone] {
            events.unbounded_send(Ok(event)).unwrap();
        }
        assert!(listed(0).await.is_empty());
        events.unbounded_send(Ok(Event::Apply(definition(2)))).unwrap();
        assert_eq!(listed(3).await, [2000, 2005, 2150]);
    }

    #[tokio::test(start_paused = true)]
    async fn the_objects_are_listed_without_the_right_to_read_the_definition() {
        let (events, stream) = mpsc::unbounded();
        let (list, mut lists) = watch::channel(());
        tokio::spawn(async move { ask_for_lists(stream, &list).await });
        events.unbounded_send(Err(watcher::Error::NoResourceVersion)).unwrap();
        lists.changed().await.unwrap();
        events.unbounded_send(Err(watcher::Error::NoResourceVersion)).unwrap();
        tokio::time::sleep(Duration::from_secs(1000)).await;
        assert!(!lists.has_changed().unwrap());
    }

    #[tokio::test]
    async fn a_watch_begins_again_for_each_list() {
        let (list, lists) = watch::channel(());
        let begun = AtomicUsize::new(0);
        let begin = || stream::iter([begun.fetch_add(1, Ordering::Relaxed)]).chain(stream::pending()).boxed();
        let mut events = pin!(restarted(begin, lists));
        for n in 0..3 {
            list.send_replace(());
            assert_eq!(events.next().await, Some(n));
        }
    }
}
