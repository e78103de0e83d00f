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
