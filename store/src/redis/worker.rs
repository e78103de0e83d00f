//! The one task that talks to Redis: it takes what waits, calls, answers, and meanwhile the next batch gathers. One
//! call at a time is under way.

use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Instant, sleep, timeout};

use super::batch::{Batch, Keys};
use super::connect::{ServerClock, backoff, connect, probe, warn_of_eviction};
use super::fault::classify;
use super::metrics::{Shared, add};
use super::options::Target;
use super::queue::Job;
use super::reply::Reply;
use super::script::Script;
use crate::failure::{StoreError, StoreFault, StoreHealth};

/// Calls in a row without an answer in time that open the circuit.
const MAX_TIMEOUTS: u32 = 3;

/// An idle connection is tried this often, so that its end is known before a check meets it.
const IDLE: Duration = Duration::from_secs(2);

/// The task's state.
pub(super) struct Worker {
    waiting: Receiver<Job>,
    /// Did not fit into the last batch.
    held: Option<Job>,
    target: Arc<Target>,
    script: Arc<Script>,
    keys: Keys,
    budget: Duration,
    shared: Arc<Shared>,
    /// Attempts and connections that failed since a call last succeeded.
    failed: u32,
    /// A key of the last batch that met an error.
    failed_key: Option<String>,
}

/// What came of one call.
enum Called {
    Answered,
    TooLate,
    Failed(StoreFault),
}

impl Worker {
    pub(super) fn new(
        waiting: Receiver<Job>,
        target: Target,
        keys: Keys,
        budget: Duration,
        shared: Arc<Shared>,
    ) -> Self {
        let (target, script) = (Arc::new(target), Arc::new(Script::new()));
        Self { waiting, held: None, target, script, keys, budget, shared, failed: 0, failed_key: None }
    }

    /// Runs until the store is dropped.
    pub(super) async fn run(mut self) {
        let mut connected_before = false;
        loop {
            let (target, script, budget) = (self.target.clone(), self.script.clone(), self.budget);
            let (key, failed) = (self.failed_key.clone(), self.failed);
            let connecting = async move { connect(&target, &script, key.as_deref(), budget, failed).await };
            let fault = match self.refusing(connecting).await {
                Ok((mut connection, clock)) => {
                    if !connected_before {
                        warn_of_eviction(&mut connection, &self.target.address).await;
                    }
                    if matches!(self.shared.health(), StoreHealth::Failing(_)) {
                        tracing::info!(address = self.target.address, "Redis works again");
                    }
                    self.shared.set_health(StoreHealth::Healthy);
                    add(&self.shared.reconnects, usize::from(connected_before));
                    connected_before = true;
                    match self.serve(connection, clock).await {
                        Some(fault) => fault,
                        None => return,
                    }
                }
                Err(fault) => fault,
            };
            self.open(fault);
            let wait = backoff(self.failed);
            self.failed = self.failed.saturating_add(1);
            self.refusing(sleep(wait)).await;
        }
    }

    /// Opens the circuit: from now on checks are refused where they arrive, and those that wait here at once.
    fn open(&mut self, fault: StoreFault) {
        let health = StoreHealth::Failing(fault);
        if self.shared.health() != health {
            tracing::warn!(address = self.target.address, "Redis fails: {fault}");
        }
        self.shared.set_health(health);
        if let Some(job) = self.held.take() {
            job.refuse(StoreError::Unavailable(fault));
        }
        while let Ok(job) = self.waiting.try_recv() {
            job.refuse(StoreError::Unavailable(fault));
        }
    }

    /// Waits for something else; while the circuit is open, refuses checks that were on their way when it opened.
    async fn refusing<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::pin!(work);
        let StoreHealth::Failing(fault) = self.shared.health() else { return work.await };
        loop {
            tokio::select! {
                done = &mut work => return done,
                Some(job) = self.waiting.recv() => job.refuse(StoreError::Unavailable(fault)),
            }
        }
    }

    /// Serves checks over a connection until it fails; `None` when the store is gone.
    async fn serve(
        &mut self,
        mut connection: MultiplexedConnection,
        mut clock: ServerClock,
    ) -> Option<StoreFault> {
        let mut timeouts = 0;
        loop {
            let job = match self.held.take() {
                Some(job) => job,
                None => match timeout(IDLE, self.waiting.recv()).await {
                    Ok(job) => job?,
                    Err(_) => match probe(&mut connection, &self.script, self.budget).await {
                        Ok(now) => {
                            (clock, timeouts, self.failed) = (now, 0, 0);
                            continue;
                        }
                        Err(StoreFault::Slow) if timeouts + 1 < MAX_TIMEOUTS => {
                            timeouts += 1;
                            continue;
                        }
                        Err(fault) => return Some(fault),
                    },
                },
            };
            let batch = self.gather(job);
            if batch.is_empty() {
                continue;
            }
            match self.call(&mut connection, &mut clock, batch).await {
                Called::Answered => (timeouts, self.failed, self.failed_key) = (0, 0, None),
                Called::TooLate if timeouts + 1 < MAX_TIMEOUTS => timeouts += 1,
                Called::TooLate => return Some(StoreFault::Slow),
                Called::Failed(fault) => return Some(fault),
            }
        }
    }

    /// Takes whatever waits, as far as it fits into one call. A check whose caller has gone is left out, and so is one
    /// whose caller is about to go: its deadline would hold for the whole batch.
    fn gather(&mut self, first: Job) -> Batch {
        let mut batch = Batch::default();
        let nearly = Instant::now() + self.budget / 10;
        let mut next = Some(first);
        while let Some(job) = next {
            if job.answer.is_closed() || job.deadline < nearly {
                self.shared.expired.fetch_add(1, Relaxed);
                job.refuse(StoreError::Timeout);
            } else {
                self.held = batch.push(job);
                if self.held.is_some() {
                    break;
                }
            }
            next = self.waiting.try_recv().ok();
        }
        batch
    }

    async fn call(
        &mut self,
        connection: &mut MultiplexedConnection,
        clock: &mut ServerClock,
        batch: Batch,
    ) -> Called {
        let sent = Instant::now();
        // From the first caller's giving up on, nothing may be counted for this batch.
        let deadline = clock.at(batch.first_deadline().unwrap_or(sent));
        let mut request = batch.request(&self.keys, deadline);
        add(&self.shared.calls, 1);
        add(&self.shared.checks, batch.callers());
        add(&self.shared.merged, batch.merged());
        let reply = match timeout(self.budget, self.script.call(connection, &request)).await {
            Ok(Ok(value)) => Reply::read(value).map_err(|_| StoreFault::Nonsense),
            Ok(Err(error)) => {
                tracing::debug!(address = self.target.address, %error, "a call to Redis failed");
                Err(classify(&error))
            }
            Err(_) => {
                add(&self.shared.timeouts, 1);
                batch.refuse(&StoreError::Timeout);
                return Called::TooLate;
            }
        };
        let fault = match reply {
            Ok(reply) => {
                self.shared.took(sent.elapsed());
                *clock = ServerClock::new(reply.now);
                if reply.is_late() {
                    add(&self.shared.late, 1);
                    batch.refuse(&StoreError::Timeout);
                    return Called::TooLate;
                }
                match reply.answer(batch) {
                    Ok(()) => return Called::Answered,
                    Err(_) => StoreFault::Nonsense,
                }
            }
            Err(fault) => {
                batch.refuse(&StoreError::Unavailable(fault));
                fault
            }
        };
        add(&self.shared.errors, 1);
        self.failed_key = request.keys.pop();
        Called::Failed(fault)
    }
}
