//! The queue of a limit, and the places of requests in it.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use prometheus_client::metrics::gauge::Gauge;
use sluice_config::policy::Queue;
use tokio::sync::Notify;
use tokio::time::{Instant, sleep_until, timeout_at};

use super::lines::{Answer, Charge, Lines, Place};
use crate::limit::index::LimitIndex;

/// The queue of a limit. Snapshots with the limit share its lines.
#[derive(Debug)]
pub(crate) struct LimitQueue {
    settings: Queue,
    lines: Arc<Mutex<Lines>>,
    waiting: Gauge,
}

/// The place of a request in the line of its key. Dropping it leaves the line.
#[derive(Debug)]
pub(super) struct Ticket {
    /// The limit in the present snapshot.
    pub(super) limit: LimitIndex,
    pub(super) queue: Arc<LimitQueue>,
    pub(super) key: u128,
    charge: Charge,
    number: u64,
    notify: Arc<Notify>,
    /// Time at which the request began to wait, in this queue or in one before it.
    pub(super) since: Instant,
}

/// The right to ask the store. Dropping it tells that there was no answer.
#[derive(Debug)]
pub(super) struct Asking {
    queue: Arc<LimitQueue>,
    key: u128,
    answer: Answer,
}

/// The end of a wait.
#[derive(Debug)]
pub(super) enum Turn {
    /// The request may ask the store.
    Ask(Asking),
    /// The request has waited as long as it may, or would certainly have to wait longer.
    TooLong,
    /// The request had to make room for a newer one.
    Evicted,
}

impl LimitQueue {
    /// Creates a queue, with the lines of `before`, that of the snapshot before.
    pub(crate) fn new(settings: Queue, waiting: Gauge, before: Option<&Arc<Self>>) -> Arc<Self> {
        let lines = before.map(|before| before.lines.clone()).unwrap_or_default();
        lines.lock().unwrap_or_else(PoisonError::into_inner).set_order(settings.order);
        Arc::new(Self { settings, lines, waiting })
    }

    fn lines(&self) -> MutexGuard<'_, Lines> {
        // The lines are consistent between any two statements that can panic.
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Reports whether requests of a key wait.
    pub(super) fn is_occupied(&self, key: u128) -> bool {
        self.lines().is_occupied(key)
    }

    /// Reports whether both are the queue of one limit, in different snapshots.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.lines, &other.lines)
    }

    /// Returns how long a request may wait.
    pub(super) fn max_wait(&self) -> Duration {
        Duration::from_millis(self.settings.max_wait.millis())
    }

    /// Returns how many requests may wait.
    pub(super) fn max_length(&self) -> u64 {
        self.settings.max_length
    }

    /// Returns the time from now until it may be of use to ask for a key.
    pub(super) fn wait(&self, key: u128) -> Duration {
        let at = self.lines().denied_until(key);
        at.map(|at| at.saturating_duration_since(Instant::now())).unwrap_or_default()
    }
}

impl Ticket {
    /// Enters the line of a key, for a request that has waited since this time. Returns `None` if the queue is full.
    pub(super) fn enter(
        limit: LimitIndex,
        queue: &Arc<LimitQueue>,
        (key, charge): (u128, Charge),
        since: Instant,
    ) -> Option<Self> {
        let notify = Arc::<Notify>::default();
        let number = queue.lines().enter(key, charge, notify.clone(), queue.settings.max_length)?;
        queue.waiting.inc();
        Some(Self { limit, queue: queue.clone(), key, charge, number, notify, since })
    }

    /// Waits until the request may ask the store.
    pub(super) async fn turn(&self) -> Turn {
        let deadline = self.since + self.queue.max_wait();
        loop {
            let place = self.queue.lines().place(self.key, self.number);
            match place {
                Place::Gone => return Turn::Evicted,
                Place::First(Some(at)) if at > deadline => return Turn::TooLong,
                Place::First(Some(at)) if at > Instant::now() => {
                    tokio::select! {
                        () = sleep_until(at) => {}
                        () = self.notify.notified() => {}
                    }
                }
                Place::First(_) => {
                    let mut lines = self.queue.lines();
                    // Another worker may have been faster.
                    if matches!(lines.place(self.key, self.number), Place::First(_)) {
                        lines.ask(self.key);
                        drop(lines);
                        let (queue, key) = (self.queue.clone(), self.key);
                        return Turn::Ask(Asking { queue, key, answer: Answer::None });
                    }
                }
                Place::Behind => {
                    if timeout_at(deadline, self.notify.notified()).await.is_err() {
                        return Turn::TooLong;
                    }
                }
            }
        }
    }

    /// Notes that a charge of the key is denied until this time.
    pub(super) fn denied(&self, charge: Charge, until: Instant) {
        self.queue.lines().denied(self.key, charge, until);
    }

    /// Returns the cost of the request.
    pub(super) fn cost(&self) -> u64 {
        self.charge.cost
    }

    /// Returns how long the request has waited.
    pub(super) fn waited(&self) -> Duration {
        self.since.elapsed()
    }

    /// Keeps the place under the settings of another snapshot.
    pub(super) fn renew(&mut self, limit: LimitIndex, queue: &Arc<LimitQueue>) {
        self.limit = limit;
        self.queue = queue.clone();
        queue.lines().forget(self.key);
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.queue.waiting.dec();
        self.queue.lines().leave(self.key, self.number);
    }
}

impl Asking {
    /// Tells what the store has answered.
    pub(super) fn answered(mut self, answer: Answer) {
        self.answer = answer;
    }
}

impl Drop for Asking {
    fn drop(&mut self) {
        self.queue.lines().asked(self.key, self.answer);
    }
}
