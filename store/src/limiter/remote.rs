//! The layers put together, as their user sees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};

use super::backend::Backend;
use super::denial_cache::DenialCache;
use super::outcome::{CheckOutcome, LimiterMetrics, LimiterOptions, Reservation};
use super::plan::PlannedCounter;
use super::store_time::StoreTime;
use crate::check::{CheckRequest, CheckResponse, Settlement};
use crate::failure::{StoreError, StoreHealth};
use crate::lease::Leases;
use crate::local::Shares;

/// How many blocks are given back at once at the end.
const RETURNED_AT_ONCE: usize = 256;

/// A limiter in front of a remote store. Dropping it ends its background task; call [`RemoteLimiter::close`] before.
#[derive(Debug)]
pub(super) struct RemoteLimiter<S: Backend> {
    core: Arc<RemoteCore<S>>,
    task: JoinHandle<()>,
}

/// The counts of a limiter that its successor continues with.
pub(super) struct LocalState {
    shares: Arc<Shares>,
    time: StoreTime,
}

impl<S: Backend> RemoteLimiter<S> {
    /// Starts a limiter, with the counts of its predecessor if it has one. Must be called within a tokio runtime.
    pub(super) fn new(store: Arc<S>, options: &LimiterOptions, local: Option<LocalState>) -> Self {
        let LocalState { shares, time } = local.unwrap_or_else(|| LocalState {
            shares: Arc::new(Shares::new(options.shared_keys, options.known_keys)),
            time: StoreTime::new(),
        });
        let runtime = Handle::current();
        let core = Arc::new(RemoteCore {
            store,
            runtime: runtime.clone(),
            time,
            budget: options.latency_budget,
            leases: Leases::new(options.leased_keys),
            denials: DenialCache::new(options.denials),
            shares,
            succeeded: AtomicBool::new(false),
            closing: Mutex::default(),
        });
        let task = runtime.spawn(RemoteCore::keep(core.clone()));
        Self { core, task }
    }

    /// Hands the local counts to a successor, which flushes them from now on. This limiter still decides checks by them.
    pub(super) fn hand_over(&self) -> LocalState {
        self.core.succeeded.store(true, Relaxed);
        LocalState { shares: self.core.shares.clone(), time: self.core.time.copied() }
    }

    pub(super) async fn check_in_store(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        self.core.store.check(check).await
    }

    pub(super) async fn settle_in_store(&self, settlement: Settlement) -> Result<(), StoreError> {
        self.core.store.settle(settlement).await
    }

    pub(super) fn health(&self) -> StoreHealth {
        self.core.store.health()
    }

    /// Decides a request: all counters admit or none is charged. No counter twice.
    ///
    /// # Errors
    /// The store did not answer, and one of the limits denies then.
    pub(super) async fn check(&self, asked: &[PlannedCounter]) -> Result<CheckOutcome, StoreError> {
        self.core.check(asked).await
    }

    /// Corrects what a request was charged for one of its counters: `delta` more, or less. Once a charge.
    ///
    /// # Errors
    /// The store did not answer; it is not tried again.
    pub(super) async fn settle(
        &self,
        asked: &PlannedCounter,
        charge: Reservation,
        delta: i64,
    ) -> Result<(), StoreError> {
        let charged = match charge {
            Reservation::Nothing => return Ok(()),
            Reservation::Store(at) => at,
            Reservation::Local(at) => {
                let now = self.core.time.of_store(self.core.time.now());
                if self.core.shares.correct(asked, at, delta, now) {
                    return Ok(());
                }
                at
            }
        };
        let limit = asked.limit.spec.clone();
        self.core.store.settle(Settlement { limit, key: asked.key, charged, delta }).await
    }

    /// What happened so far.
    #[must_use]
    pub(super) fn metrics(&self) -> LimiterMetrics {
        LimiterMetrics {
            lease: self.core.leases.metrics(),
            share: self.core.shares.metrics(),
            denials_remembered: self.core.denials.hits(),
        }
    }

    /// The store.
    #[must_use]
    pub(super) fn store(&self) -> &Arc<S> {
        &self.core.store
    }

    /// Gives back what is held and tells the store what was counted here, each within the store's latency budget. No
    /// request may come after it. Of several at a time each ends when all of that is done.
    pub(super) async fn close(&self) {
        let core = &self.core;
        let _one = core.closing.lock().await;
        for flight in core.leases.flights() {
            let _ = flight.completed().await;
        }
        let mut back = core.leases.return_all(core.time.now()).into_iter();
        loop {
            let mut returning = JoinSet::new();
            for settlement in back.by_ref().take(RETURNED_AT_ONCE) {
                let store = core.store.clone();
                returning.spawn(async move { store.settle(settlement).await });
            }
            if returning.is_empty() {
                break;
            }
            // What cannot be given back ends with its slot.
            while returning.join_next().await.is_some() {}
        }
        while core.tells() && core.store.health() == StoreHealth::Healthy {
            let before = core.shares.pending();
            core.hand_over_some().await;
            if core.shares.pending() == before {
                return;
            }
        }
    }
}

impl<S: Backend> Drop for RemoteLimiter<S> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a limiter's requests and tasks have in common.
#[derive(Debug)]
pub(super) struct RemoteCore<S> {
    pub(super) store: Arc<S>,
    /// Where calls to the store run: those where requests are asked may end before.
    pub(super) runtime: Handle,
    pub(super) time: StoreTime,
    pub(super) budget: Duration,
    pub(super) leases: Leases,
    pub(super) denials: DenialCache,
    /// Another one's too, once that has taken this one's place.
    pub(super) shares: Arc<Shares>,
    /// Another one has taken its place, and tells what is to be told.
    succeeded: AtomicBool,
    /// Held while it is closed.
    closing: Mutex<()>,
}

impl<S> RemoteCore<S> {
    /// Whether there is something that this one, of all that have these counts, is to tell its store.
    pub(super) fn tells(&self) -> bool {
        self.shares.pending() > 0 && !self.succeeded.load(Relaxed)
    }
}
