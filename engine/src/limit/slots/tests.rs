//! Slots, with a real memory store.

use prometheus_client::metrics::gauge::Gauge;
use sluice_config::policy;
use sluice_limiter::{Period, Rate, Requests};
use sluice_store::{Clock, MemoryStore};

use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use sluice_store::{Counter, KeyHash, LimitPlan, Limiter, OnStoreFailure, Replicas};

use super::limit::ConcurrencyLimit;
use super::slot::Slot;
use super::table::Slots;
use super::upkeep::{INTERVAL, SlotOperation, TELL};

const KEY: KeyHash = KeyHash(7);

fn limit(rate: Rate, before: Option<&ConcurrencyLimit>) -> Arc<ConcurrencyLimit> {
    ConcurrencyLimit::new("n/p/l", rate, OnStoreFailure::Allow, &Replicas::alone(), Gauge::default(), before)
}

struct Stage {
    clock: Clock,
    slots: Slots,
    limit: Arc<ConcurrencyLimit>,
    limiter: Arc<Limiter>,
}

impl Stage {
    fn new(max: u64) -> Self {
        let clock = Clock::manual(60_000_000);
        let store = MemoryStore::new(100, clock.clone());
        let lease = Period::from_millis(30_000).unwrap();
        let rate = ConcurrencyLimit::rate(&policy::Slots {
            max: Requests::new(max).unwrap(),
            lease,
            abandoned_for_millis: 1000,
        })
        .unwrap();
        let limit = limit(rate, None);
        Self { clock, slots: Slots::default(), limit, limiter: Arc::new(Limiter::in_memory(store)) }
    }

    fn now(&self) -> u64 {
        self.clock.now()
    }

    /// Lets the store forget all slots, which the process does not notice.
    fn lose_counter(&self) {
        self.clock.advance(40_000);
    }

    fn request(&self) -> (Slot, Arc<LimitPlan>) {
        self.slots.prepare_check(&self.limit, KEY, &self.limiter).unwrap()
    }

    fn acquire(&self) -> Option<Slot> {
        let (mut slot, plan) = self.request();
        if self.check(&plan) {
            slot.granted(self.now());
            return Some(slot);
        }
        slot.denied();
        None
    }

    fn check(&self, plan: &LimitPlan) -> bool {
        let store = self.limiter.memory().unwrap();
        store.check(&[Counter { limit: plan.spec.clone(), key: KEY, cost: 1 }]).admitted
    }

    fn holder(&self) -> u64 {
        self.limit.current.load().holder.get()
    }

    async fn release_last(&self) {
        self.slots.send_all(self.slots.releases()).await;
        assert_eq!(self.counters(), 0);
    }

    /// Makes a check that the store executes and whose answer is lost.
    fn lose_answer(&self) {
        let (mut slot, plan) = self.request();
        assert!(self.check(&plan));
        slot.unanswered();
    }

    async fn change_holders(&self) -> usize {
        let changes = self.slots.holder_changes();
        let number = changes.len();
        join_all(changes.into_iter().map(|change| self.slots.change_holder(change))).await;
        number
    }

    fn counters(&self) -> usize {
        self.slots.0.lock().counters.len()
    }
}

#[tokio::test(start_paused = true)]
async fn releases_are_merged_and_never_lost() {
    let stage = Stage::new(3);
    let held: Vec<_> = std::iter::from_fn(|| stage.acquire()).collect();
    assert_eq!((held.len(), stage.limit.totals.held.get()), (3, 3));
    drop(held);
    assert!(stage.acquire().is_none(), "the store still counts them");
    assert!(stage.slots.renewals().is_empty(), "renewals do not lose a release");
    let calls = stage.slots.releases();
    assert_eq!(calls.iter().map(|call| call.operation).collect::<Vec<_>>(), [SlotOperation::Release(3)]);
    assert_eq!((stage.counters(), stage.limit.totals.held.get()), (0, 0));
    stage.slots.send_all(calls).await;
    assert_eq!(std::iter::from_fn(|| stage.acquire()).map(std::mem::forget).count(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_check_is_made_after_the_releases_of_its_counter() {
    let stage = Stage::new(2);
    let held = stage.acquire();
    for _ in 0..10 {
        drop(stage.acquire().expect("the one before has ended"));
        let (mut slot, plan) = stage.request();
        let calls = stage.slots.releases_before(std::slice::from_ref(&slot));
        assert_eq!(calls.iter().map(|call| call.operation).collect::<Vec<_>>(), [SlotOperation::Release(1)]);
        stage.slots.send_all(calls).await;
        assert!(stage.check(&plan));
        slot.granted(stage.now());
        drop(slot);
        assert_eq!(stage.slots.0.lock().released.len(), 1, "the list does not grow");
        let calls = stage.slots.releases();
        assert_eq!(calls.len(), 1, "the task releases what no check has released");
        stage.slots.send_all(calls).await;
    }
    drop(held);
}

#[tokio::test(start_paused = true)]
async fn held_slots_are_renewed_in_time() {
    let stage = Stage::new(3);
    let held = stage.acquire();
    for _ in 0..10 {
        tokio::time::advance(Duration::from_secs(9)).await;
        assert!(stage.slots.renewals().is_empty());
        tokio::time::advance(Duration::from_secs(2)).await;
        let calls = stage.slots.renewals();
        assert_eq!(calls.iter().map(|call| call.operation).collect::<Vec<_>>(), [SlotOperation::Renew]);
        stage.slots.send_all(calls).await;
    }
    assert!(!stage.limit.has_expired_slots());
    // No renewal is sent any more.
    tokio::time::advance(Duration::from_secs(30)).await;
    let holder = stage.holder();
    let _ = stage.slots.renewals();
    assert!(stage.limit.has_expired_slots() && stage.holder() != holder);
    let edited = limit(stage.limit.slot_rate(), Some(&stage.limit));
    assert!(edited.has_expired_slots(), "an edit keeps the state");
    drop(held);
    assert!(!stage.limit.has_expired_slots());
}

#[tokio::test(start_paused = true)]
async fn a_slot_of_a_lost_answer_is_released_with_the_others_of_its_holder() {
    let stage = Stage::new(3);
    let held = stage.acquire();
    let before = stage.holder();
    stage.lose_answer();
    assert_ne!(stage.holder(), before, "the limit continues under another holder");
    assert_eq!(std::iter::from_fn(|| stage.acquire()).map(drop).count(), 1, "one of three is lost");
    drop(held);
    stage.slots.send_all(stage.slots.releases()).await;
    assert_eq!(stage.counters(), 0);
    let all: Vec<_> = std::iter::from_fn(|| stage.acquire()).collect();
    assert_eq!(all.len(), 3);
    drop(all);
    stage.release_last().await;
    // Alone, it is released by the next renewal, while the store may still count it.
    let (mut slot, _) = stage.slots.prepare_check(&stage.limit, KeyHash(8), &stage.limiter).unwrap();
    slot.unanswered();
    drop(slot);
    let calls = stage.slots.renewals();
    assert_eq!(calls.iter().map(|call| call.operation).collect::<Vec<_>>(), [SlotOperation::ReleaseAll]);
    assert!(stage.slots.renewals().is_empty());
}

#[tokio::test(start_paused = true)]
async fn held_slots_move_to_a_new_holder_when_there_is_room() {
    let stage = Stage::new(4);
    let held = [stage.acquire(), stage.acquire()];
    stage.lose_answer();
    assert_eq!(
        stage.change_holders().await,
        1,
        "two slots are held, one is uncertain, one is free: there is no room for two more"
    );
    assert_eq!(
        (stage.change_holders().await, stage.slots.holder_changes().len()),
        (0, 0),
        "the next attempt waits"
    );
    let [one, two] = held;
    drop(one);
    stage.slots.send_all(stage.slots.releases()).await;
    tokio::time::advance(INTERVAL).await;
    assert_eq!(stage.change_holders().await, 1);
    let others: Vec<_> = std::iter::from_fn(|| stage.acquire()).collect();
    assert_eq!(others.len(), 3, "the uncertain slot is free, the held one is not");
    drop(others);
    stage.slots.send_all(stage.slots.releases()).await;
    drop(two);
    stage.release_last().await;
    let all: Vec<_> = std::iter::from_fn(|| stage.acquire()).collect();
    assert_eq!(all.len(), 4);
}

#[tokio::test(start_paused = true)]
async fn a_request_that_ends_during_a_holder_change_releases_one_slot() {
    let stage = Stage::new(9);
    let [one, two, three] = [stage.acquire(), stage.acquire(), stage.acquire()];
    stage.lose_answer();
    drop(one);
    let changes = stage.slots.holder_changes();
    drop(two);
    assert!(
        stage.slots.releases().is_empty() && stage.slots.renewals().is_empty(),
        "no call is sent meanwhile"
    );
    for change in changes {
        stage.slots.change_holder(change).await;
    }
    stage.slots.send_all(stage.slots.releases()).await;
    let others: Vec<_> = std::iter::from_fn(|| stage.acquire()).collect();
    assert_eq!(others.len(), 8);
    drop(others);
    drop(three);
    stage.release_last().await;
}

#[tokio::test(start_paused = true)]
async fn expired_slots_are_acquired_again() {
    let stage = Stage::new(3);
    let held = stage.acquire();
    tokio::time::advance(Duration::from_secs(30)).await;
    let calls = stage.slots.renewals();
    assert!(stage.limit.has_expired_slots());
    drop(calls);
    // Whether the store has forgotten the slots makes no difference.
    assert_eq!(stage.change_holders().await, 1);
    assert!(!stage.limit.has_expired_slots());
    let others: Vec<_> = std::iter::from_fn(|| stage.acquire()).collect();
    assert_eq!(others.len(), 2);
    drop((held, others));
    stage.release_last().await;
}

/// The slots that the store counts, of all holders.
fn used(stage: &Stage) -> u64 {
    let plan = &stage.limit.current.load().plan;
    let peek = Counter { limit: plan.spec.clone(), key: KEY, cost: 0 };
    let decision = stage.limiter.memory().unwrap().check(&[peek]).decisions[0];
    decision.limit - decision.remaining
}

#[tokio::test(start_paused = true)]
async fn slots_that_the_store_has_lost_are_held_again_with_the_next_call_and_no_release_frees_anothers() {
    let stage = Stage::new(3);
    let mut lost: Vec<_> = std::iter::from_fn(|| stage.acquire()).collect();
    stage.lose_counter();
    let others: Vec<_> = std::iter::from_fn(|| stage.acquire()).collect();
    assert_eq!((lost.len(), others.len()), (3, 3), "nothing has told the store of the first three");
    drop(lost.pop());
    stage.slots.send_all(stage.slots.releases()).await;
    assert_eq!(used(&stage), 3, "shown as all of them");
    drop(lost);
    stage.slots.send_all(stage.slots.releases()).await;
    assert!(stage.acquire().is_none(), "the three others are in progress");
    drop(others);
    stage.slots.send_all(stage.slots.releases()).await;
    let all: Vec<_> = std::iter::from_fn(|| stage.acquire()).collect();
    assert_eq!(all.len(), 3);
}

#[tokio::test(start_paused = true)]
async fn a_check_tells_the_store_of_slots_that_it_has_not_been_told_of_for_a_while() {
    let stage = Stage::new(3);
    let held = [stage.acquire(), stage.acquire()];
    stage.lose_counter();
    let before = |stage: &Stage| {
        let (mut slot, _) = stage.request();
        let calls = stage.slots.releases_before(std::slice::from_ref(&slot));
        slot.denied();
        calls
    };
    assert!(before(&stage).is_empty());
    tokio::time::advance(TELL).await;
    let calls = before(&stage);
    assert_eq!(calls.iter().map(|call| call.operation).collect::<Vec<_>>(), [SlotOperation::Renew]);
    assert!(before(&stage).is_empty(), "only once");
    stage.slots.send_all(calls).await;
    assert_eq!(used(&stage), 2);
    drop(held);
    stage.release_last().await;
}

#[tokio::test(start_paused = true)]
async fn reset_slots_stay_free_and_the_limit_goes_on_under_a_new_holder() {
    let stage = Stage::new(3);
    let held: Vec<_> = std::iter::from_fn(|| stage.acquire()).collect();
    let (holder, spec) = (stage.holder(), stage.limit.current.load().spec.clone());
    stage.limiter.memory().unwrap().reset(&spec, KEY);
    stage.clock.advance(1);
    let unaware = stage.acquire();
    assert!(unaware.is_some(), "all are free");
    tokio::time::advance(Duration::from_secs(11)).await;
    stage.slots.send_all(stage.slots.renewals()).await;
    assert_eq!(stage.limit.totals.held.get(), 0, "they are forgotten");
    assert_ne!(stage.holder(), holder);
    stage.slots.send_all(stage.slots.renewals()).await;
    assert_eq!(stage.counters(), 0, "what was granted under the old holder is released");
    let others: Vec<_> = std::iter::from_fn(|| stage.acquire()).collect();
    assert_eq!(others.len(), 3);
    drop((held, unaware));
    stage.slots.send_all(stage.slots.releases()).await;
    assert!(stage.acquire().is_none(), "the end of a forgotten request frees nothing");
    drop(others);
    stage.release_last().await;
}

#[tokio::test(start_paused = true)]
async fn a_slot_that_was_granted_while_the_process_learns_of_a_reset_is_released() {
    let stage = Stage::new(1);
    let before = stage.acquire();
    let spec = stage.limit.current.load().spec.clone();
    stage.limiter.memory().unwrap().reset(&spec, KEY);
    stage.clock.advance(1);
    drop(before);
    let (mut slot, plan) = stage.request();
    let calls = stage.slots.releases_before(std::slice::from_ref(&slot));
    assert!(stage.check(&plan), "the store has freed the one before");
    stage.slots.send_all(calls).await;
    slot.granted(stage.now());
    drop(slot);
    stage.slots.send_all(stage.slots.releases()).await;
    stage.slots.send_all(stage.slots.renewals()).await;
    assert_eq!((stage.counters(), stage.limit.totals.held.get()), (0, 0));
    assert!(stage.acquire().is_some());
}
