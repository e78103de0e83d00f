//! The task that talks to one server: it connects, gathers operations, calls the script and responds. A
//! second call is sent while the first one is in flight if enough operations wait that the server would
//! otherwise idle between them.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{RedisResult, Value};
use tokio::time::{Instant, sleep};

use super::circuit::{Circuit, FailureLog, Info};
use super::intake::{Idle, Intake, RepeatedBatch};
use super::metrics::add;
use super::write::{CompletedWrite, PipelineSettings, ScriptCall, WritesInFlight};
use crate::eviction::Eviction;
use crate::failure::{StoreError, StoreFault};
use crate::fault_cause::FaultCause;
use crate::redis::connect::{
    Connected, Connector, Ended, FailureAt, LoginWatch, MasterWatch, Redirect, ServerClock, ServerFailure,
    Verification, backoff, loggable, probe, read_eviction,
};
use crate::redis::script::{KeyNames, Reply, Scripts, respond};
use crate::redis::scripts::Script;

/// Number of consecutive calls without a reply in time that opens the circuit.
const MAX_TIMEOUTS: u32 = 3;

/// Maximum number of writes in flight.
const MAX_IN_FLIGHT: usize = 2;

/// Time that a connection must hold before the next attempt after its end is made at once. A server that fails a moment after
/// each attempt would otherwise be asked without a pause.
const HOLDS: Duration = Duration::from_secs(10);

/// Share of the latency budget that a call may take. A check may have to wait for the reply to another one first.
const FAR: f64 = 0.4;

/// Interval at which an idle connection is probed, so that its end is noticed before a check needs it.
const PROBE_INTERVAL: Duration = Duration::from_secs(2);

/// The state of the task.
pub(super) struct Worker {
    intake: Intake,
    settings: PipelineSettings,
    circuit: Arc<Circuit>,
    /// Address of the server, for logs.
    address: String,
    /// Number of failed attempts and connections since a connection last held.
    failed: u32,
    /// Time at which the connection began, until it has held for [`HOLDS`].
    unsettled: Option<Instant>,
    /// A key from the last call that failed with an error.
    failed_key: Option<String>,
    /// Time since which this server reports that the cluster is down.
    cluster_down_since: Option<Instant>,
    /// The failures that were logged.
    log: FailureLog,
    /// Whether the address is known to lead to one server.
    is_one_server: bool,
    /// Whether the last connection was slow.
    is_far: bool,
    /// Whether a failure was logged since the last line about a recovery.
    has_failed: bool,
}

/// The outcome of a write or a call.
enum CallOutcome {
    Completed,
    TimedOut,
    Failed(ServerFailure),
}

/// The reason to leave a connection.
enum Disconnect {
    Failed,
    /// Another server has become the master.
    MasterChanged(Box<Connected>),
    /// The node was dropped.
    Closed,
}

/// Waits for the connection to a master that replaces the one in use.
async fn replacing_master(watch: &mut Option<&mut MasterWatch>) -> Box<Connected> {
    match watch {
        Some(watch) => watch.found().await,
        None => std::future::pending().await,
    }
}

/// Notes whether a server evicts counters, and logs it when it is new.
fn note_eviction(circuit: &Circuit, eviction: Eviction, address: &str) {
    if eviction == Eviction::Possible && circuit.eviction() != Eviction::Possible {
        tracing::warn!(
            address,
            "Redis may evict counters, whose clients then begin again with nothing used: set maxmemory-policy noeviction"
        );
    }
    circuit.set_eviction(eviction);
    // What gave no answer once is not asked again: it may end the connection.
    circuit.set_info(if eviction == Eviction::NotSeen { Info::EndsConnections } else { Info::Answered });
}

impl Worker {
    pub(super) fn new(intake: Intake, settings: PipelineSettings, circuit: Arc<Circuit>) -> Self {
        Self {
            intake,
            settings,
            circuit,
            address: String::new(),
            failed: 0,
            unsettled: None,
            failed_key: None,
            cluster_down_since: None,
            log: FailureLog::default(),
            is_one_server: false,
            is_far: false,
            has_failed: false,
        }
    }

    /// Runs until the node is dropped.
    pub(super) async fn run(mut self, connector: Connector) {
        let mut connected_before = false;
        let mut replacement = None;
        self.address = connector.to_string();
        loop {
            let verification = Verification {
                scripts: self.settings.scripts.clone(),
                probe_key: self.settings.probe_key.clone(),
                key: self.failed_key.clone(),
                budget: self.settings.budget,
                shards: self.shards(&connector),
            };
            let begun = Instant::now();
            let connected = match replacement.take() {
                Some(connected) => Ok(connected),
                None => {
                    let last = connected_before.then(|| self.address.clone());
                    let connecting = connector.connect(last.as_deref(), &verification, self.failed);
                    let Some(connected) = self.fail_items_during(connecting).await else { return };
                    connected.map(Box::new)
                }
            };
            // A failed attempt is part of the delay before the next one.
            let mut waited = Duration::ZERO;
            let end = match connected {
                Ok(connected) => {
                    let Connected { target, mut connection, clock, round_trip } = *connected;
                    self.is_one_server = true;
                    self.warn_of_distance(&target.address, round_trip);
                    let is_another = !connected_before || self.address != target.address;
                    if self.address != target.address {
                        self.circuit.set_info(Info::Unasked);
                    }
                    if self.circuit.info() == Info::Unasked {
                        match read_eviction(&mut connection).await {
                            Ok(eviction) => note_eviction(&self.circuit, eviction, &target.address),
                            Err(Ended) => {
                                self.circuit.set_info(Info::EndsConnections);
                                self.address.clone_from(&target.address);
                                continue;
                            }
                        }
                    }
                    self.address.clone_from(&target.address);
                    self.circuit.close();
                    if !is_another && self.circuit.info() == Info::Answered {
                        // Checks do not wait for it.
                        let (circuit, address) = (self.circuit.clone(), target.address.clone());
                        let mut connection = connection.clone();
                        tokio::spawn(async move {
                            match read_eviction(&mut connection).await {
                                Ok(eviction) => note_eviction(&circuit, eviction, &address),
                                // Another server may be at this address now. It is not asked again.
                                Err(Ended) => circuit.set_info(Info::EndsConnections),
                            }
                        });
                    }
                    self.unsettled = Some(Instant::now());
                    self.cluster_down_since = None;
                    add(&self.settings.metrics.reconnects, usize::from(connected_before));
                    connected_before = true;
                    let _login =
                        target.login.as_ref().map(|login| LoginWatch::start(login.clone(), &connection));
                    let mut watch = connector
                        .watch(&self.address, Verification { key: None, shards: None, ..verification });
                    self.serve(connection, clock, watch.as_mut()).await
                }
                Err(failure) => {
                    self.open_circuit(&failure);
                    waited = begun.elapsed();
                    Disconnect::Failed
                }
            };
            match end {
                Disconnect::Closed => return,
                Disconnect::MasterChanged(connected) => {
                    replacement = Some(connected);
                    continue;
                }
                Disconnect::Failed => {}
            }
            let cause = self.circuit.cause().unwrap_or(FaultCause::ConnectionLost);
            let delay = backoff(self.failed, cause).saturating_sub(waited);
            self.failed = self.failed.saturating_add(1);
            if self.fail_items_during(sleep(delay)).await.is_none() {
                return;
            }
        }
    }

    /// Returns the names of keys if the connector may lead to a proxy that has not been looked at yet.
    fn shards(&self, connector: &Connector) -> Option<KeyNames> {
        let may_be_a_proxy =
            matches!((connector, &*self.settings.scripts), (Connector::Fixed(_), Scripts::Hashes(_)));
        (may_be_a_proxy && !self.is_one_server).then(|| self.settings.names.clone())
    }

    /// Logs a warning if a call takes so much of the budget that a check that waits for another one's reply falls back. It is
    /// logged once until a connection is faster.
    fn warn_of_distance(&mut self, address: &str, round_trip: Duration) {
        let is_far = round_trip.as_secs_f64() > FAR * self.settings.budget.as_secs_f64();
        if is_far && !self.is_far {
            tracing::warn!(
                address,
                ?round_trip,
                latency_budget = ?self.settings.budget,
                "a call to Redis takes more than 40 % of the latency budget: checks will often be decided without it; raise the \
                 latency budget, or bring Redis nearer"
            );
        }
        self.is_far = is_far;
    }

    /// Notes that the connection works. One that has held for a while has recovered: the next attempt is made at once again.
    fn works(&mut self) {
        if self.unsettled.is_some_and(|since| since.elapsed() >= HOLDS) {
            self.unsettled = None;
            self.failed = 0;
            if std::mem::take(&mut self.has_failed) {
                tracing::info!(address = self.address, "Redis has recovered");
            }
        }
    }

    /// Opens the circuit: new operations fail at the node, and the waiting ones fail now.
    fn open_circuit(&mut self, failed: &FailureAt) {
        let FailureAt { address, failure } = failed;
        let (cause, fault) = (failure.cause, failure.fault());
        match self.log.record(failed, self.circuit.cause().is_some(), Instant::now()) {
            None => {}
            Some(0) => tracing::warn!(address, "Redis has failed: {failure}"),
            Some(more) => tracing::warn!(address, more, "Redis fails again and again: {failure}"),
        }
        self.has_failed = true;
        self.circuit.open(cause);
        self.intake.fail_all(&StoreError::Unavailable(fault));
        if let Some(cluster) = self.settings.redirect_handler() {
            cluster.refresh_soon();
        }
    }

    /// Runs a future. While the circuit is open, fails the items that were on their way to the queue when it
    /// opened. Returns `None` when the node is dropped.
    async fn fail_items_during<T>(&mut self, work: impl Future<Output = T>) -> Option<T> {
        match self.circuit.fault() {
            Some(fault) => self.intake.fail_during(StoreError::Unavailable(fault), work).await,
            None => Some(work.await),
        }
    }

    /// Serves operations over a connection until it fails.
    async fn serve(
        &mut self,
        mut connection: MultiplexedConnection,
        mut clock: ServerClock,
        mut watch: Option<&mut MasterWatch>,
    ) -> Disconnect {
        let signal = self.intake.signal.clone();
        let mut writes = WritesInFlight::default();
        let (mut timeouts, mut replacement) = (0, None);
        let failure = loop {
            let next = if replacement.is_some() && writes.len() > 0 {
                // Nothing more is sent to the former master.
                None
            } else if let Some(connected) = replacement.take() {
                return Disconnect::MasterChanged(connected);
            } else if writes.len() == 0 {
                let item = tokio::select! {
                    item = self.intake.next(PROBE_INTERVAL) => item,
                    connected = replacing_master(&mut watch) => return Disconnect::MasterChanged(connected),
                };
                match item {
                    Ok(Some(item)) => Some(item),
                    Ok(None) => return Disconnect::Closed,
                    Err(Idle) => {
                        let (scripts, budget) = (&self.settings.scripts, self.settings.budget);
                        let key = self.settings.probe_key.as_deref();
                        match probe(&mut connection, scripts, Script::Single, key, budget).await {
                            Ok(now) => {
                                (clock, timeouts) = (now, 0);
                                self.works();
                                continue;
                            }
                            Err(failure)
                                if failure.fault() == StoreFault::Slow && timeouts + 1 < MAX_TIMEOUTS =>
                            {
                                timeouts += 1;
                                continue;
                            }
                            Err(failure) => break failure,
                        }
                    }
                }
            } else if writes.len() < MAX_IN_FLIGHT {
                self.intake.next_for_second_call()
            } else {
                None
            };
            if let Some(item) = next {
                let calls = self.intake.gather(item, &clock, &self.settings);
                if !calls.is_empty() {
                    writes.send(&connection, &self.settings.scripts, calls, self.settings.budget);
                }
                signal.set_in_flight(writes.len());
                continue;
            }
            let completed = tokio::select! {
                completed = writes.next() => completed,
                () = signal.reached(), if writes.len() < MAX_IN_FLIGHT && replacement.is_none() => continue,
                connected = replacing_master(&mut watch), if replacement.is_none() => {
                    replacement = Some(connected);
                    continue;
                }
            };
            signal.set_in_flight(writes.len());
            match self.complete(completed, &mut clock) {
                CallOutcome::Completed => {
                    (timeouts, self.failed_key) = (0, None);
                    self.works();
                }
                CallOutcome::TimedOut if timeouts + 1 < MAX_TIMEOUTS => timeouts += 1,
                CallOutcome::TimedOut => break FaultCause::Slow.into(),
                CallOutcome::Failed(failure) => break failure,
            }
        };
        signal.set_in_flight(0);
        let error = StoreError::Unavailable(failure.fault());
        self.open_circuit(&FailureAt { address: self.address.clone(), failure });
        // Replies to the writes in flight may still arrive; after their timeout at the latest they complete.
        while writes.len() > 0 {
            let Some(completed) = self.fail_items_during(writes.next()).await else {
                return Disconnect::Closed;
            };
            self.complete(completed, &mut clock);
            self.intake.fail_held(&error);
        }
        Disconnect::Failed
    }

    /// Responds to the callers of a write. The worst outcome among its calls is that of the write.
    fn complete(&mut self, completed: CompletedWrite, clock: &mut ServerClock) -> CallOutcome {
        let CompletedWrite { sent, calls, replies } = completed;
        let Some(replies) = replies else {
            for call in calls {
                add(&self.settings.metrics.timeouts, 1);
                call.batch.fail(&StoreError::Timeout);
            }
            return CallOutcome::TimedOut;
        };
        let latency = sent.elapsed();
        let mut outcome = CallOutcome::Completed;
        for (call, reply) in calls.into_iter().zip(replies) {
            outcome = match (outcome, self.complete_call(call, reply, latency, clock)) {
                (CallOutcome::Failed(failure), _) | (_, CallOutcome::Failed(failure)) => {
                    CallOutcome::Failed(failure)
                }
                (CallOutcome::TimedOut, _) | (_, CallOutcome::TimedOut) => CallOutcome::TimedOut,
                (CallOutcome::Completed, CallOutcome::Completed) => CallOutcome::Completed,
            };
        }
        outcome
    }

    fn complete_call(
        &mut self,
        mut call: ScriptCall,
        reply: RedisResult<Value>,
        latency: Duration,
        clock: &mut ServerClock,
    ) -> CallOutcome {
        let metrics = &self.settings.metrics;
        let reply = match reply {
            Ok(value) => Reply::read(value).map_err(|_| FaultCause::InvalidReply.into()),
            Err(error) => {
                match (self.settings.redirect_handler(), Redirect::from_error(&error)) {
                    (Some(cluster), Some(redirect)) => {
                        let lasts = match (&redirect, self.cluster_down_since) {
                            (Redirect::Down, Some(since)) => since.elapsed() > self.settings.budget,
                            (Redirect::Down, None) => {
                                self.cluster_down_since = Some(Instant::now());
                                false
                            }
                            _ => false,
                        };
                        if !lasts {
                            add(&metrics.redirected, 1);
                            cluster.redirect(redirect, &self.address, call);
                            return CallOutcome::Completed;
                        }
                    }
                    (None, Some(Redirect::Moved(_))) => tracing::warn!(
                        address = self.address,
                        "this Redis is part of a cluster: use a URL that begins with redis+cluster:// or rediss+cluster://"
                    ),
                    _ => {}
                }
                tracing::debug!(address = self.address, error = loggable(&error), "a call to Redis failed");
                Err(ServerFailure::from_error(&error))
            }
        };
        let failure = match reply {
            Ok(reply) => {
                self.cluster_down_since = None;
                metrics.record_latency(latency);
                *clock = ServerClock::new(reply.now);
                if reply.is_late() {
                    add(&metrics.late, 1);
                    call.batch.fail(&StoreError::Timeout);
                    return CallOutcome::TimedOut;
                }
                match respond(reply, call.batch, &self.settings.names) {
                    Ok(None) => return CallOutcome::Completed,
                    Ok(Some(batch)) => {
                        let ScriptCall { group, asking, redirects, .. } = call;
                        self.intake.repeat(RepeatedBatch { group, batch, asking, redirects });
                        return CallOutcome::Completed;
                    }
                    Err(_) => FaultCause::InvalidReply.into(),
                }
            }
            Err(failure) => {
                call.batch.fail(&StoreError::Unavailable(failure.fault()));
                failure
            }
        };
        add(&metrics.errors, 1);
        self.failed_key = call.arguments.keys.pop();
        CallOutcome::Failed(failure)
    }
}
