use super::*;

fn key(name: &str) -> ObjectKey {
    ObjectKey { namespace: "n".into(), name: name.into() }
}

/// Reports whether the queue has nothing to hand out now.
async fn is_idle(queue: &Arc<Queue>) -> bool {
    tokio::time::timeout(Duration::ZERO, queue.next()).await.is_err()
}

#[tokio::test(start_paused = true)]
async fn a_policy_is_queued_once_and_a_delayed_one_comes_when_it_is_due() {
    let queue = Arc::new(Queue::default());
    queue.add(key("a"));
    queue.add(key("a"));
    queue.add_after(key("b"), Duration::from_secs(60));
    queue.add_after(key("b"), Duration::from_secs(30));
    assert_eq!(queue.next().await.key(), &key("a"));
    let start = Instant::now();
    assert_eq!(queue.next().await.key(), &key("b"));
    assert!(start.elapsed() >= Duration::from_secs(30) && start.elapsed() < Duration::from_secs(31));
    assert!(is_idle(&queue).await);
}

#[tokio::test(start_paused = true)]
async fn a_claimed_policy_is_not_handed_out_again_until_the_claim_is_dropped() {
    let queue = Arc::new(Queue::default());
    queue.add(key("a"));
    let claim = queue.next().await;
    queue.add(key("a"));
    queue.add(key("a"));
    queue.add(key("b"));
    assert_eq!(queue.next().await.key(), &key("b"), "other policies do not wait for it");
    assert!(is_idle(&queue).await);
    drop(claim);
    assert_eq!(queue.next().await.key(), &key("a"));
    assert!(is_idle(&queue).await, "what was added twice meanwhile is one");
}

#[tokio::test(start_paused = true)]
async fn what_a_reconcile_has_yet_to_observe_needs_no_further_one() {
    let queue = Arc::new(Queue::default());
    queue.add(key("a"));
    let claim = queue.next().await;
    queue.add_observed([key("a")]);
    queue.add_after(key("a"), Duration::ZERO);
    assert!(is_idle(&queue).await);
    claim.observe();
    drop(claim);
    assert!(is_idle(&queue).await);

    queue.add_observed([key("a")]);
    let claim = queue.next().await;
    claim.observe();
    queue.add_observed([key("a")]);
    drop(claim);
    let claim = queue.next().await;
    queue.add(key("a"));
    queue.add_observed([key("a")]);
    claim.observe();
    drop(claim);
    assert_eq!(queue.next().await.key(), &key("a"), "another change does");
    assert!(is_idle(&queue).await);
}

#[tokio::test(start_paused = true)]
async fn what_is_due_while_it_is_claimed_follows_and_an_earlier_time_replaces_a_later_one() {
    let queue = Arc::new(Queue::default());
    for (name, seconds) in [("b", 20), ("a", 30), ("b", 40), ("a", 10)] {
        queue.add_after(key(name), Duration::from_secs(seconds));
    }
    let start = Instant::now();
    let claim = queue.next().await;
    assert_eq!((claim.key(), start.elapsed().as_secs()), (&key("a"), 10));
    queue.add_after(key("a"), Duration::from_secs(5));
    let other = queue.next().await;
    assert_eq!((other.key(), start.elapsed().as_secs()), (&key("b"), 20), "a is due and claimed");
    drop(claim);
    assert_eq!(queue.next().await.key(), &key("a"));
    assert!(is_idle(&queue).await);
}
