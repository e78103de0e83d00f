//! The one task that talks to a server: it takes what waits, calls, answers, and meanwhile the next batch gathers. A
//! second call is sent beside the first when so much waits that the server would otherwise idle between them.

use std::future::Future;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Weak};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tokio::sync::Notify;
use tokio::sync::mpsc::Receiver;
use tokio::task::AbortHandle;
use tokio::time::{Instant, sleep, timeout};

use super::batch::{Batch, Keys, MAX_RECORDS};
use super::call::{Calls, Done, Part};
use super::cluster::Cluster;
use super::connect::{Connected, ServerClock, Way, backoff, probe, warn_of_eviction};
use super::fault::{Redirect, Trouble};
use super::metrics::{Circuit, Shared, add};
use super::node::{Again, Flow, Item, Lane};
use super::queue::{Job, MAX_WAITING};
use super::reply::Reply;
use super::script::{Request, Script};
use crate::failure::{StoreError, StoreFault, StoreHealth};

/// Calls in a row without an answer in time that open the circuit.
const MAX_TIMEOUTS: u32 = 3;

/// How many calls may be on their way at once, and how many different questions must wait for the second one to be worth
/// its price: smaller batches cost the server more a check.
const DEPTH: usize = 2;
const ENOUGH: usize = 64;

/// How many script calls one write may carry.
const MAX_PARTS: usize = 128;

/// An idle connection is tried this often, so that its end is known before a check meets it.
const IDLE: Duration = Duration::from_secs(2);

/// How often sentinels are asked whether the master is still the same.
const WATCH: Duration = Duration::from_secs(5);

/// What all workers of a store share.
#[derive(Clone)]
pub(super) struct Setting {
    pub(super) script: Arc<Script>,
    pub(super) keys: Keys,
    pub(super) budget: Duration,
    pub(super) shared: Arc<Shared>,
    /// Who knows where a slot is; empty where there are none.
    pub(super) cluster: Weak<Cluster>,
}

/// The task's state.
pub(super) struct Worker {
    waiting: Receiver<Item>,
    /// Did not fit into the last call.
    held: Option<Item>,
    setting: Setting,
    circuit: Arc<Circuit>,
    flow: Arc<Flow>,
    /// The server's address, for logs.
    address: String,
    /// Attempts and connections that failed since a call last succeeded.
    failed: u32,
    /// A key of the last call that met an error.
    failed_key: Option<String>,
    /// Since when the cluster is down, as this server says.
    down: Option<Instant>,
    /// What the log last said of the server.
    told: Option<Trouble>,
}

/// What came of one call.
enum Called {
    Answered,
    TooLate,
    Failed(Trouble),
}

/// Why a connection is not used any more.
enum End {
    Failed,
    /// Another server is the master.
    Moved,
    /// Nobody will ask any more.
    Gone,
}

/// Ends a task with its owner.
struct Guarded(AbortHandle);

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Worker {
    pub(super) fn new(
        waiting: Receiver<Item>,
        setting: Setting,
        circuit: Arc<Circuit>,
        flow: Arc<Flow>,
    ) -> Self {
        Self {
            waiting,
            held: None,
            setting,
            circuit,
            flow,
            address: String::new(),
            failed: 0,
            failed_key: None,
            down: None,
            told: None,
        }
    }

    /// Runs until nobody can ask any more.
    pub(super) async fn run(mut self, way: Way) {
        let mut connected_before = false;
        self.address = way.to_string();
        loop {
            let (script, budget) = (self.setting.script.clone(), self.setting.budget);
            let (key, failed) = (self.failed_key.clone(), self.failed);
            let connecting = way.connect(&script, key.as_deref(), budget, failed);
            let Some(connected) = self.refusing(connecting).await else { return };
            let end = match connected {
                Ok(Connected { target, mut connection, clock }) => {
                    if !connected_before || self.address != target.address {
                        warn_of_eviction(&mut connection, &target.address).await;
                    }
                    self.address.clone_from(&target.address);
                    if self.circuit.fault().is_some() {
                        tracing::info!(address = self.address, "Redis works again");
                    }
                    self.circuit.set(StoreHealth::Healthy);
                    self.down = None;
                    add(&self.setting.shared.reconnects, usize::from(connected_before));
                    connected_before = true;
                    let (_watch, moved) = watch(&way, &self.address);
                    self.serve(connection, clock, &moved).await
                }
                Err(trouble) => {
                    self.open(trouble);
                    End::Failed
                }
            };
            match end {
                End::Gone => return,
                End::Moved => continue,
                End::Failed => {}
            }
            let wait = backoff(self.failed);
            self.failed = self.failed.saturating_add(1);
            if self.refusing(sleep(wait)).await.is_none() {
                return;
            }
        }
    }

    /// Opens the circuit: from now on checks are refused where they arrive, and those that wait here at once.
    fn open(&mut self, trouble: Trouble) {
        let fault = trouble.fault;
        if self.circuit.fault() != Some(fault) || self.told.as_ref() != Some(&trouble) {
            tracing::warn!(address = self.address, "Redis fails: {trouble}");
        }
        self.told = Some(trouble);
        self.circuit.set(StoreHealth::Failing(fault));
        let error = StoreError::Unavailable(fault);
        if let Some(item) = self.held.take() {
            item.refuse(&error);
        }
        while let Ok(item) = self.waiting.try_recv() {
            item.refuse(&error);
        }
        if let Some(cluster) = self.setting.cluster.upgrade() {
            cluster.look_again();
        }
    }

    /// Waits for something else; while the circuit is open, refuses checks that were on their way when it opened.
    /// `None` when nobody can ask any more.
    async fn refusing<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        tokio::pin!(work);
        let Some(fault) = self.circuit.fault() else { return Some(work.await) };
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                item = self.waiting.recv() => item?.refuse(&StoreError::Unavailable(fault)),
            }
        }
    }

    /// Serves checks over a connection until it fails.
    async fn serve(
        &mut self,
        mut connection: MultiplexedConnection,
        mut clock: ServerClock,
        moved: &Notify,
    ) -> End {
        let mut calls = Calls::default();
        let mut timeouts = 0;
        let trouble = loop {
            let next = if calls.len() == 0 {
                let item = tokio::select! {
                    item = self.next() => item,
                    () = moved.notified() => return End::Moved,
                };
                match item {
                    Ok(Some(item)) => Some(item),
                    Ok(None) => return End::Gone,
                    Err(Idle) => {
                        match probe(&mut connection, &self.setting.script, self.setting.budget).await {
                            Ok(now) => {
                                (clock, timeouts, self.failed) = (now, 0, 0);
                                continue;
                            }
                            Err(Trouble { fault: StoreFault::Slow, .. }) if timeouts + 1 < MAX_TIMEOUTS => {
                                timeouts += 1;
                                continue;
                            }
                            Err(trouble) => break trouble,
                        }
                    }
                }
            } else if calls.len() < DEPTH
                && (self.held.is_some() || self.waiting.len() >= self.flow.enough_at.load(Relaxed))
            {
                self.held.take().or_else(|| self.waiting.try_recv().ok())
            } else {
                None
            };
            if let Some(item) = next {
                let parts = self.gather(item, &clock);
                if !parts.is_empty() {
                    calls.send(&connection, &self.setting.script, parts, self.setting.budget);
                }
                self.flow.alone.store(calls.len() == 1, Relaxed);
                continue;
            }
            let done = tokio::select! {
                done = calls.next() => done,
                () = self.flow.enough.notified(), if calls.len() < DEPTH => continue,
            };
            self.flow.alone.store(calls.len() == 1, Relaxed);
            match self.end(done, &mut clock) {
                Called::Answered => (timeouts, self.failed, self.failed_key) = (0, 0, None),
                Called::TooLate if timeouts + 1 < MAX_TIMEOUTS => timeouts += 1,
                Called::TooLate => break StoreFault::Slow.into(),
                Called::Failed(trouble) => break trouble,
            }
        };
        self.flow.alone.store(false, Relaxed);
        self.open(trouble);
        // What is still on its way may be answered yet, at the latest when its time is over.
        while calls.len() > 0 {
            let Some(done) = self.refusing(calls.next()).await else { return End::Gone };
            self.end(done, &mut clock);
        }
        End::Failed
    }

    /// What waits longest; not for longer than a connection may idle.
    async fn next(&mut self) -> Result<Option<Item>, Idle> {
        match self.held.take() {
            Some(item) => Ok(Some(item)),
            None => timeout(IDLE, self.waiting.recv()).await.map_err(|_| Idle),
        }
    }

    /// Takes whatever waits, as far as it fits into one call. A check whose caller has gone is left out, and so is one
    /// whose caller is about to go: its deadline would hold for the whole batch.
    fn gather(&mut self, first: Item, clock: &ServerClock) -> Vec<Part> {
        let now = Instant::now();
        let nearly = now + self.setting.budget / 10;
        let (mut parts, mut records) = (Vec::<Part>::new(), 0);
        let mut next = Some(first);
        while let Some(item) = next {
            let left = match item {
                Item::Job(_, job) if job.is_gone() || job.deadline < nearly => {
                    self.setting.shared.expired.fetch_add(1, Relaxed);
                    job.refuse(StoreError::Timeout);
                    None
                }
                Item::Again(again) if again.batch.first_deadline().is_none_or(|at| at < nearly) => {
                    add(&self.setting.shared.expired, again.batch.callers());
                    again.batch.refuse(&StoreError::Timeout);
                    None
                }
                item if !parts.is_empty() && (records >= MAX_RECORDS || parts.len() >= MAX_PARTS) => {
                    Some(item)
                }
                Item::Again(again) => {
                    let Again { lane, batch, asking, tries } = *again;
                    records += batch.records();
                    parts.push(Part { lane, batch, asking, tries, request: Request::default() });
                    None
                }
                Item::Job(lane, job) => {
                    let (left, more) = push(&mut parts, lane, job);
                    records += more;
                    left
                }
            };
            if left.is_some() {
                self.held = left;
                break;
            }
            next = self.waiting.try_recv().ok();
        }
        let shared = &self.setting.shared;
        let (callers, merged) = parts.iter().fold((0, 0), |(callers, merged), part| {
            (callers + part.batch.callers(), merged + part.batch.merged())
        });
        self.flow.enough_at.store(enough(callers, merged), Relaxed);
        for part in &mut parts {
            // From the first caller's giving up on, nothing may be counted for this batch.
            let deadline = clock.at(part.batch.first_deadline().unwrap_or(now));
            part.request = part.batch.request(&self.setting.keys, deadline);
            add(&shared.calls, 1);
            add(&shared.checks, part.batch.callers());
            add(&shared.merged, part.batch.merged());
        }
        parts
    }

    /// Answers what a write was for.
    fn end(&mut self, done: Done, clock: &mut ServerClock) -> Called {
        let Done { sent, parts, replies } = done;
        let Some(replies) = replies else {
            for part in parts {
                add(&self.setting.shared.timeouts, 1);
                part.batch.refuse(&StoreError::Timeout);
            }
            return Called::TooLate;
        };
        let took = sent.elapsed();
        let mut called = Called::Answered;
        for (part, reply) in parts.into_iter().zip(replies) {
            called = match (called, self.end_part(part, reply, took, clock)) {
                (Called::Failed(trouble), _) | (_, Called::Failed(trouble)) => Called::Failed(trouble),
                (Called::TooLate, _) | (_, Called::TooLate) => Called::TooLate,
                (Called::Answered, Called::Answered) => Called::Answered,
            };
        }
        called
    }

    fn end_part(
        &mut self,
        mut part: Part,
        reply: RedisResult<Value>,
        took: Duration,
        clock: &mut ServerClock,
    ) -> Called {
        let shared = &self.setting.shared;
        let reply = match reply {
            Ok(value) => Reply::read(value).map_err(|_| StoreFault::Nonsense.into()),
            Err(error) => {
                if let Some(cluster) = self.setting.cluster.upgrade()
                    && let Some(redirect) = Redirect::of(&error)
                {
                    let lasts = match (&redirect, self.down) {
                        (Redirect::Down, Some(since)) => since.elapsed() > self.setting.budget,
                        (Redirect::Down, None) => {
                            self.down = Some(Instant::now());
                            false
                        }
                        _ => false,
                    };
                    if !lasts {
                        add(&shared.redirected, 1);
                        cluster.again(redirect, &self.address, part);
                        return Called::Answered;
                    }
                }
                if matches!(Redirect::of(&error), Some(Redirect::Moved(_))) {
                    tracing::warn!(address = self.address, "this Redis belongs to a cluster: name it as one");
                }
                tracing::debug!(address = self.address, %error, "a call to Redis failed");
                Err(Trouble::of(&error))
            }
        };
        let trouble = match reply {
            Ok(reply) => {
                self.down = None;
                shared.took(took);
                *clock = ServerClock::new(reply.now);
                if reply.is_late() {
                    add(&shared.late, 1);
                    part.batch.refuse(&StoreError::Timeout);
                    return Called::TooLate;
                }
                match reply.answer(part.batch) {
                    Ok(()) => return Called::Answered,
                    Err(_) => StoreFault::Nonsense.into(),
                }
            }
            Err(trouble) => {
                part.batch.refuse(&StoreError::Unavailable(trouble.fault));
                trouble
            }
        };
        add(&shared.errors, 1);
        self.failed_key = part.request.keys.pop();
        Called::Failed(trouble)
    }
}

/// Nothing came for a while.
struct Idle;

/// Adds a check to the part of its lane, or gives it back if it does not fit; and how many records it adds.
fn push(parts: &mut Vec<Part>, lane: Lane, job: Job) -> (Option<Item>, usize) {
    // What is sent again has a part to itself.
    if let Some(part) = parts.iter_mut().find(|part| part.lane == lane && part.tries == 0) {
        let before = part.batch.records();
        let left = part.batch.push(job);
        return (left.map(|job| Item::Job(lane, job)), part.batch.records() - before);
    }
    let mut batch = Batch::default();
    let left = batch.push(job);
    let records = batch.records();
    parts.push(Part { lane, batch, asking: false, tries: 0, request: Request::default() });
    (left.map(|job| Item::Job(lane, job)), records)
}

/// How many must wait for a second call when so many of the callers of this one asked what another one asked: what waits is
/// likely to merge as well.
fn enough(callers: usize, merged: usize) -> usize {
    (ENOUGH * callers / (callers - merged).max(1)).clamp(ENOUGH, MAX_WAITING / 4)
}

/// Keeps asking the sentinels, if the way leads over them, until they name another master; then tells so.
fn watch(way: &Way, address: &str) -> (Option<Guarded>, Arc<Notify>) {
    let moved = Arc::new(Notify::new());
    let Way::Sentinels(sentinels) = way else { return (None, moved) };
    let (sentinels, address, tell) = (sentinels.clone(), address.to_owned(), moved.clone());
    let task = tokio::spawn(async move {
        loop {
            sleep(WATCH).await;
            if sentinels.master(0).await.is_ok_and(|master| master.address != address) {
                return tell.notify_one();
            }
        }
    });
    (Some(Guarded(task.abort_handle())), moved)
}
