//! The layers put together, as their user sees them.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Mutex;
use tokio::task::{JoinHandle, JoinSet};

use super::backend::Backend;
use super::denial_cache::DenialCache;
use super::lease::Leases;
use super::outcome::{Charge, LimiterMetrics, LimiterOptions, Outcome};
use super::plan::PlannedCounter;
use super::share::Shares;
use super::time::Time;
use crate::check::Settlement;
use crate::failure::{StoreError, StoreHealth};

/// How many blocks are given back at once at the end.
const RETURNED_AT_ONCE: usize = 256;

/// A store with the layers above it. Dropping it ends its task; call [`Limiter::close`] before.
#[derive(Debug)]
pub struct Limiter<S: Backend = crate::Store> {
    inner: Arc<Inner<S>>,
    task: JoinHandle<()>,
}

impl<S: Backend> Limiter<S> {
    /// Layers above a store. To be called within a tokio runtime, of either flavour.
    pub fn new(store: Arc<S>, options: &LimiterOptions) -> Self {
        let shares = Arc::new(Shares::new(options.shared_keys, options.known_keys));
        Self::above(store, options, shares, Time::new())
    }

    /// Layers above a store that takes the place of another one, where the same keys mean the same counters: it has what
    /// was counted here and what is known, and tells its store what is still to be told. The old one goes on to answer
    /// what it was asked, by the same counts, and is to be closed: it gives back blocks and nothing else.
    pub fn succeed(old: &Self, store: Arc<S>, options: &LimiterOptions) -> Self {
        let old = &old.inner;
        old.succeeded.store(true, Relaxed);
        Self::above(store, options, old.shares.clone(), old.time.copied())
    }

    fn above(store: Arc<S>, options: &LimiterOptions, shares: Arc<Shares>, time: Time) -> Self {
        let runtime = Handle::current();
        let inner = Arc::new(Inner {
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
        let task = runtime.spawn(Inner::keep(inner.clone()));
        Self { inner, task }
    }

    /// Decides a request: all counters admit or none is charged. No counter twice.
    ///
    /// # Errors
    /// The store did not answer, and one of the limits denies then.
    pub async fn check(&self, asked: &[PlannedCounter]) -> Result<Outcome, StoreError> {
        self.inner.check(asked).await
    }

    /// Corrects what a request was charged for one of its counters: `delta` more, or less. Once a charge.
    ///
    /// # Errors
    /// The store did not answer; it is not tried again.
    pub async fn settle(&self, asked: &PlannedCounter, charge: Charge, delta: i64) -> Result<(), StoreError> {
        let charged = match charge {
            Charge::Nothing => return Ok(()),
            Charge::Store(at) => at,
            Charge::Local(at) => {
                let now = self.inner.time.of_store(self.inner.time.now());
                if self.inner.shares.correct(asked, at, delta, now) {
                    return Ok(());
                }
                at
            }
        };
        let limit = asked.limit.spec.clone();
        self.inner.store.settle(Settlement { limit, key: asked.key, charged, delta }).await
    }

    /// What happened so far.
    #[must_use]
    pub fn metrics(&self) -> LimiterMetrics {
        LimiterMetrics {
            lease: self.inner.leases.metrics(),
            share: self.inner.shares.metrics(),
            denials_remembered: self.inner.denials.hits(),
        }
    }

    /// The store.
    #[must_use]
    pub fn store(&self) -> &Arc<S> {
        &self.inner.store
    }

    /// Gives back what is held and tells the store what was counted here, each within the store's latency budget. No
    /// request may come after it. Of several at a time each ends when all of that is done.
    pub async fn close(&self) {
        let inner = &self.inner;
        let _one = inner.closing.lock().await;
        for flight in inner.leases.flights() {
            let _ = flight.landed().await;
        }
        let mut back = inner.leases.return_all(inner.time.now()).into_iter();
        loop {
            let mut returning = JoinSet::new();
            for settlement in back.by_ref().take(RETURNED_AT_ONCE) {
                let store = inner.store.clone();
                returning.spawn(async move { store.settle(settlement).await });
            }
            if returning.is_empty() {
                break;
            }
            // What cannot be given back ends with its slot.
            while returning.join_next().await.is_some() {}
        }
        while inner.tells() && inner.store.health() == StoreHealth::Healthy {
            let before = inner.shares.pending();
            inner.hand_over_some().await;
            if inner.shares.pending() == before {
                return;
            }
        }
    }
}

impl<S: Backend> Drop for Limiter<S> {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// What a limiter's requests and tasks have in common.
#[derive(Debug)]
pub(super) struct Inner<S> {
    pub(super) store: Arc<S>,
    /// Where calls to the store run: those where requests are asked may end before.
    pub(super) runtime: Handle,
    pub(super) time: Time,
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

impl<S> Inner<S> {
    /// Whether there is something that this one, of all that have these counts, is to tell its store.
    pub(super) fn tells(&self) -> bool {
        self.shares.pending() > 0 && !self.succeeded.load(Relaxed)
    }
}
