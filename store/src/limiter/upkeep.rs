//! What goes on beside the requests: blocks are taken and given back, and the store is told of what was counted here.
//! Each call is a task of its own: what it brings is not lost when the request that wanted it has gone.

use std::sync::Arc;
use std::time::Duration;

use smallvec::{SmallVec, smallvec};
use tokio::time::sleep;

use super::backend::Backend;
use super::plan::PlannedCounter;
use super::remote::RemoteCore;
use crate::check::Counter;
use crate::failure::{StoreError, StoreHealth};
use crate::lease::{Taking, used};
use crate::local::{HandOver, Part};
use crate::pending_call::LOST;

/// How often the store is looked at for its recovery while it is to be told something.
const LOOK: Duration = Duration::from_millis(20);

/// How often it is looked whether there is something to tell it.
const IDLE: Duration = Duration::from_millis(100);

/// How many counters are handed over at once in the background.
const HANDED_OVER_AT_ONCE: usize = 64;

impl<S: Backend> RemoteCore<S> {
    /// Takes a block: a task of its own.
    pub(super) fn take(self: &Arc<Self>, taking: Taking) {
        // Made here: it lands though the task never begins.
        let landing = Landing { core: self.clone(), taking };
        self.runtime.spawn(async move {
            let Landing { core, taking } = &landing;
            let sent = core.time.now();
            let granted = core.store.acquire(taking.counter.clone(), taking.times).await;
            if let Ok(granted) = &granted {
                let now = core.time.now();
                core.time.heard(granted.answer.at, now);
                if let Some(asked) = core.leases.took(taking, granted, sent, now) {
                    core.shares.heard(&asked, &granted.answer.decisions, granted.answer.at);
                }
            }
            taking.flight.complete(granted.map(|_| ()));
        });
    }

    /// The store is told of these counters before it is asked about them.
    pub(super) async fn before_store(self: &Arc<Self>, asked: &[PlannedCounter]) -> Result<(), StoreError> {
        for one in asked {
            let at = self.time.of_store(self.time.now());
            let Some((flight, hand_over)) = self.shares.hand_over(one.counter_id(), at) else { continue };
            if let Some(hand_over) = hand_over {
                self.hand_over(hand_over);
            }
            flight.completed().await?;
        }
        Ok(())
    }

    /// Tells the store of one counter: a task of its own, as it must be known how far it got.
    fn hand_over(self: &Arc<Self>, hand_over: HandOver) {
        let mut telling = Telling { core: self.clone(), hand_over, told: SmallVec::new(), result: LOST };
        self.runtime.spawn(async move {
            let Telling { core, hand_over, told, result } = &mut telling;
            for part in &hand_over.parts {
                let Some(limit) = hand_over.plan.singles.get(part.rate) else { continue };
                let counter = |cost| Counter { limit: limit.clone(), key: hand_over.key, cost };
                if let Err(error) = core.tell(counter, *part).await {
                    *result = Err(error);
                    return;
                }
                told.push(part.rate);
            }
            *result = Ok(());
        });
    }

    /// Tells the store of one rate.
    async fn tell(&self, counter: impl Fn(u64) -> Counter, part: Part) -> Result<(), StoreError> {
        let mut lost = 0;
        if part.least > 0 {
            let peeked = counter(0);
            let rates = peeked.limit.rates.first().copied();
            let answer = self.store.check(smallvec![peeked]).await?;
            let used = rates.as_ref().zip(answer.decisions.first()).map(|(rate, found)| used(rate, found));
            lost = used.map_or(0, |used| part.least.saturating_sub(used));
        }
        self.pour(counter, part.own.saturating_add(lost)).await
    }

    /// Takes `amount`, or as much as there is room for, in few calls: first in large units, then in small ones.
    async fn pour(&self, counter: impl Fn(u64) -> Counter, amount: u64) -> Result<(), StoreError> {
        let mut left = amount;
        while left > 0 {
            let unit = left.div_ceil(1024).max(1);
            let times = left / unit;
            let granted = self.store.acquire(counter(unit), times).await?.granted.min(times);
            left -= granted * unit;
            if granted < times {
                // There is no room for another unit.
                left = left.min(unit - 1);
            }
        }
        Ok(())
    }

    /// Hands over some of what waits, and waits for it.
    pub(super) async fn hand_over_some(self: &Arc<Self>) {
        let mut flights = Vec::new();
        for id in self.shares.some_pending(HANDED_OVER_AT_ONCE) {
            let at = self.time.of_store(self.time.now());
            if let Some((flight, hand_over)) = self.shares.hand_over(id, at) {
                if let Some(hand_over) = hand_over {
                    self.hand_over(hand_over);
                }
                flights.push(flight);
            }
        }
        for flight in flights {
            let _ = flight.completed().await;
        }
    }

    /// Looks after blocks that are not used, and tells the store what was counted here when it is back.
    pub(super) async fn keep(self: Arc<Self>) {
        loop {
            let (back, next) = self.leases.review(self.time.now());
            for settlement in back {
                let core = self.clone();
                self.runtime.spawn(async move {
                    // What cannot be given back ends with its slot.
                    let _ = core.store.settle(settlement).await;
                });
            }
            let pending = self.tells();
            if pending && self.store.health() == StoreHealth::Healthy {
                self.hand_over_some().await;
            }
            let review = next.map(|at| Duration::from_micros(at.saturating_sub(self.time.now())));
            let wait = if pending { LOOK } else { IDLE };
            let wait = review.map_or(wait, |review| review.clamp(Duration::from_millis(1), wait));
            tokio::select! {
                () = sleep(wait) => {}
                () = self.leases.earlier() => {}
            }
        }
    }
}

/// Sees to it that a taking ends, however its task does.
struct Landing<S: Backend> {
    core: Arc<RemoteCore<S>>,
    taking: Taking,
}

impl<S: Backend> Drop for Landing<S> {
    fn drop(&mut self) {
        self.core.leases.not_taken(&self.taking);
        self.taking.flight.complete(LOST);
    }
}

/// Sees to it that a handing over ends, however its task does.
struct Telling<S: Backend> {
    core: Arc<RemoteCore<S>>,
    hand_over: HandOver,
    told: SmallVec<[usize; 1]>,
    result: Result<(), StoreError>,
}

impl<S: Backend> Drop for Telling<S> {
    fn drop(&mut self) {
        let at = self.core.time.of_store(self.core.time.now());
        self.core.shares.handed_over(&self.hand_over, &self.told, at);
        self.hand_over.flight.complete(self.result.clone());
    }
}
