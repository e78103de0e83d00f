//! The queue between a node and its worker, and the batches that the worker's end forms.
//!
//! A check of a shape that the small scripts know goes to them, unless they
//! recently left a check of one of its limits undecided: after an edit of a policy, counters may hold further
//! records for a while, and without this memory each of their checks would need two calls.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::atomic::{AtomicBool, AtomicUsize};

use tokio::sync::Notify;
use tokio::sync::mpsc::Receiver;
use tokio::time::{Duration, Instant, timeout};

use super::metrics::add;
use super::write::{PipelineSettings, ScriptCall};
use crate::check::{Counter, LimitSpec};
use crate::failure::StoreError;
use crate::redis::batch::{Batch, BatchGroup, MAX_RECORDS, MAX_WAITING, Operation, PendingOperation};
use crate::redis::connect::ServerClock;
use crate::redis::script::{CallContext, encode};
use crate::redis::scripts::Script;

/// Work for a server.
#[derive(Debug)]
pub(crate) enum QueueItem {
    /// A new operation.
    New(BatchGroup, PendingOperation),
    /// A batch that a server redirected, or that a small script did not decide.
    Repeated(Box<RepeatedBatch>),
}

/// A batch that is sent again, for another server or another script.
#[derive(Debug)]
pub(crate) struct RepeatedBatch {
    pub(crate) group: BatchGroup,
    pub(crate) batch: Batch,
    /// Whether the call follows an ASKING command.
    pub(crate) asking: bool,
    /// Number of times that the batch was redirected.
    pub(crate) redirects: u32,
}

impl QueueItem {
    /// Returns an error to all callers.
    pub(crate) fn fail(self, error: &StoreError) {
        match self {
            Self::New(_, pending) => pending.operation.fail(error.clone()),
            Self::Repeated(repeated) => repeated.batch.fail(error),
        }
    }
}

/// Wakes the worker when enough operations wait to send a second call while the first one is in flight.
#[derive(Debug, Default)]
pub(super) struct SecondCallSignal {
    /// Whether exactly one call is in flight.
    one_in_flight: AtomicBool,
    notify: Notify,
    /// Number of waiting operations that suffices for a second call.
    threshold: AtomicUsize,
}

impl SecondCallSignal {
    pub(super) fn set_in_flight(&self, calls: usize) {
        self.one_in_flight.store(calls == 1, Relaxed);
    }

    pub(super) fn threshold(&self) -> usize {
        self.threshold.load(Relaxed)
    }

    pub(super) fn set_threshold(&self, waiting: usize) {
        self.threshold.store(waiting, Relaxed);
    }

    /// Wakes the worker if this number of waiting operations suffices.
    pub(super) fn notify_if_reached(&self, waiting: impl FnOnce() -> usize) {
        if self.one_in_flight.load(Relaxed)
            && waiting() >= self.threshold()
            && self.one_in_flight.swap(false, Relaxed)
        {
            self.notify.notify_one();
        }
    }

    /// Waits for [`SecondCallSignal::notify_if_reached`].
    pub(super) async fn reached(&self) {
        self.notify.notified().await;
    }
}

/// Duration for which the general script decides all checks of a limit after an undecided one.
const GENERAL_FOR: Duration = Duration::from_secs(1);

/// Limits whose checks the general script decides for now, by their address. A wrong entry, because another
/// limit has taken the address, only affects the price of its checks.
#[derive(Debug, Default)]
pub(super) struct ScriptChoice {
    general_until: HashMap<usize, Instant>,
}

impl ScriptChoice {
    /// Returns the script that decides an operation.
    pub(super) fn script_of(&self, operation: &Operation, now: Instant) -> Script {
        let counters = operation.counters();
        let is_general = |counter: &Counter| {
            self.general_until.get(&address(&counter.limit)).is_some_and(|&until| now < until)
        };
        if counters.iter().any(is_general) { Script::General } else { Script::of(counters) }
    }

    /// Records a batch of undecided checks.
    pub(super) fn record_undecided(&mut self, batch: &Batch, now: Instant) {
        self.general_until.retain(|_, until| now < *until);
        for counter in batch.entries().0.iter().flat_map(Operation::counters) {
            self.general_until.insert(address(&counter.limit), now + GENERAL_FOR);
        }
    }
}

fn address(limit: &Arc<LimitSpec>) -> usize {
    Arc::as_ptr(limit) as usize
}

/// Number of different operations that must wait for a second call to be worth its price: smaller batches
/// cost the server more per check.
const SECOND_CALL_THRESHOLD: usize = 64;

/// Maximum number of script calls in one write.
const MAX_CALLS: usize = 128;

/// The worker's end of the queue.
pub(super) struct Intake {
    waiting: Receiver<QueueItem>,
    /// Items that come before those in the queue: batches to repeat, and an operation that did not fit into
    /// the last write.
    held: VecDeque<QueueItem>,
    choice: ScriptChoice,
    pub(super) signal: Arc<SecondCallSignal>,
}

/// No item arrived for a while.
pub(super) struct Idle;

impl Intake {
    pub(super) fn new(waiting: Receiver<QueueItem>, signal: Arc<SecondCallSignal>) -> Self {
        Self { waiting, held: VecDeque::new(), choice: ScriptChoice::default(), signal }
    }

    /// Waits for the next item, but not longer than `idle`. Returns `None` when the node is dropped.
    pub(super) async fn next(&mut self, idle: Duration) -> Result<Option<QueueItem>, Idle> {
        match self.held.pop_front() {
            Some(item) => Ok(Some(item)),
            None => timeout(idle, self.waiting.recv()).await.map_err(|_| Idle),
        }
    }

    /// Returns the next item if enough wait for a second call.
    pub(super) fn next_for_second_call(&mut self) -> Option<QueueItem> {
        if !self.held.is_empty() || self.waiting.len() >= self.signal.threshold() {
            self.held.pop_front().or_else(|| self.waiting.try_recv().ok())
        } else {
            None
        }
    }

    /// Fails all waiting items.
    pub(super) fn fail_all(&mut self, error: &StoreError) {
        self.fail_held(error);
        while let Ok(item) = self.waiting.try_recv() {
            item.fail(error);
        }
    }

    /// Fails the items that are not in the queue any more.
    pub(super) fn fail_held(&mut self, error: &StoreError) {
        self.held.drain(..).for_each(|item| item.fail(error));
    }

    /// Runs a future and fails all items that arrive meanwhile. Returns `None` when the node is dropped.
    pub(super) async fn fail_during<T>(
        &mut self,
        error: StoreError,
        work: impl Future<Output = T>,
    ) -> Option<T> {
        tokio::pin!(work);
        loop {
            tokio::select! {
                done = &mut work => return Some(done),
                item = self.waiting.recv() => item?.fail(&error),
            }
        }
    }

    /// Takes back the checks of x.
    pub(super) fn repeat(&mut self, undecided: RepeatedBatch) {
        self.choice.record_undecided(&undecided.batch, Instant::now());
        self.held.push_back(QueueItem::Repeated(Box::new(undecided)));
    }

    /// Forms the calls of one write from all waiting items, as far as they fit. Operations whose callers have
    /// given up are dropped. So are those whose callers are about to give up, because the earliest deadline
    /// applies to a whole batch.
    pub(super) fn gather(
        &mut self,
        first: QueueItem,
        clock: &ServerClock,
        settings: &PipelineSettings,
    ) -> Vec<ScriptCall> {
        let metrics = &settings.metrics;
        let now = Instant::now();
        let near_deadline = now + settings.budget / 10;
        let (mut calls, mut records) = (Vec::<ScriptCall>::new(), 0);
        let mut next = Some(first);
        while let Some(item) = next {
            let left = match item {
                QueueItem::New(_, pending)
                    if pending.operation.is_abandoned() || pending.deadline < near_deadline =>
                {
                    add(&metrics.expired, 1);
                    pending.operation.fail(StoreError::Timeout);
                    None
                }
                QueueItem::Repeated(repeated)
                    if repeated.batch.first_deadline().is_none_or(|at| at < near_deadline) =>
                {
                    add(&metrics.expired, repeated.batch.callers());
                    repeated.batch.fail(&StoreError::Timeout);
                    None
                }
                item if !calls.is_empty() && (records >= MAX_RECORDS || calls.len() >= MAX_CALLS) => {
                    Some(item)
                }
                QueueItem::Repeated(repeated) => {
                    let RepeatedBatch { group, batch, asking, redirects } = *repeated;
                    records += batch.records();
                    calls.push(ScriptCall { asking, redirects, ..ScriptCall::new(group, batch) });
                    None
                }
                QueueItem::New(group, pending) => {
                    let script = self.choice.script_of(&pending.operation, now);
                    let (left, added) = push(&mut calls, group, script, pending);
                    records += added;
                    left
                }
            };
            if let Some(left) = left {
                self.held.push_front(left);
                break;
            }
            next = self.held.pop_front().or_else(|| self.waiting.try_recv().ok());
        }
        let (callers, merged) = calls.iter().fold((0, 0), |(callers, merged), call| {
            (callers + call.batch.callers(), merged + call.batch.merged())
        });
        self.signal.set_threshold(second_call_threshold(callers, merged));
        let arrange = |call: &mut ScriptCall| {
            let rest = call.batch.arrange()?;
            Some(ScriptCall {
                asking: call.asking,
                redirects: call.redirects,
                ..ScriptCall::new(call.group, rest)
            })
        };
        let rest: Vec<_> = calls.iter_mut().filter_map(arrange).collect();
        // The checks of a batch may all be for the general script. An empty call would look like one that came too late.
        calls.retain(|call| !call.batch.is_empty());
        calls.extend(rest);
        for call in &mut calls {
            // Nothing may be charged for this batch once its first caller has given up.
            let deadline = clock.at(call.batch.first_deadline().unwrap_or(now));
            let context = CallContext { names: &settings.names, deadline, asking: call.asking };
            call.arguments = encode(&call.batch, context);
            add(&metrics.calls, 1);
            add(&metrics.checks, call.batch.callers());
            add(&metrics.merged, call.batch.merged());
        }
        calls
    }
}

/// Adds an operation to the call of its group and script. Returns it if it does not fit, and the number of records that
/// it adds.
fn push(
    calls: &mut Vec<ScriptCall>,
    group: BatchGroup,
    script: Script,
    pending: PendingOperation,
) -> (Option<QueueItem>, usize) {
    // A redirected batch keeps a call of its own.
    let is_open =
        |call: &&mut ScriptCall| call.group == group && call.batch.takes(script) && call.redirects == 0;
    if let Some(call) = calls.iter_mut().find(is_open) {
        let before = call.batch.records();
        let left = call.batch.push(pending);
        return (left.map(|pending| QueueItem::New(group, pending)), call.batch.records() - before);
    }
    let mut batch = Batch::new(script);
    let left = batch.push(pending);
    let records = batch.records();
    calls.push(ScriptCall::new(group, batch));
    (left.map(|pending| QueueItem::New(group, pending)), records)
}

/// Returns the number of waiting operations that suffices for a second call. It grows with the share of
/// merged operations in the call just formed, because the waiting ones will probably merge as well.
fn second_call_threshold(callers: usize, merged: usize) -> usize {
    (SECOND_CALL_THRESHOLD * callers / (callers - merged).max(1))
        .clamp(SECOND_CALL_THRESHOLD, MAX_WAITING / 4)
}
