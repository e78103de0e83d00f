//! A sidecar within a process: the binary's, the CLI's, or a test's.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use sluice_store::Clock;
use tokio::sync::Semaphore;
use tokio::task::JoinHandle;
use tokio::time::Instant;

use crate::config::publisher::Publisher;
use crate::config::stores::{CurrentLimiter, Stores};
use crate::inbound::accept::bind;
use crate::inbound::head_timeout::{IDLE, Limits};
use crate::metrics::registry::Metrics;
use crate::process::admin::Admin;
use crate::process::drain::{self, Signal, Watch};
use crate::process::memory;
use crate::process::worker::{Work, Worker};
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::Upstream;

/// A listener and the application behind it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Route {
    /// Where clients come in. Port 0: any free one.
    pub listen: SocketAddr,
    /// Where requests go.
    pub upstream: Upstream,
}

/// How to run a sidecar.
#[derive(Debug, Clone)]
pub struct Options {
    /// Its listeners.
    pub routes: Vec<Route>,
    /// Its admin port, if it has one.
    pub admin: Option<SocketAddr>,
    /// How many workers; at least one.
    pub workers: usize,
    /// How many connections all workers hold at once; more wait to be accepted.
    pub max_connections: usize,
    /// How long a client may take for the head of a request, from its first byte on.
    pub header_timeout: Duration,
    /// How long an HTTP/1 connection may be idle before a request.
    pub idle_timeout: Duration,
    /// How long `/startupz` waits for the first policies.
    pub startup_wait: Duration,
    /// What a memory store goes by.
    pub clock: Clock,
}

impl Options {
    /// One worker, the machine's clock, no admin port, as many connections as the memory has room for, 10 s for a head
    /// and for the first policies, 75 s of idleness.
    #[must_use]
    pub fn new(routes: Vec<Route>) -> Self {
        Self {
            routes,
            admin: None,
            workers: 1,
            max_connections: memory::connections(),
            header_timeout: Duration::from_secs(10),
            idle_timeout: IDLE,
            startup_wait: Duration::from_secs(10),
            clock: Clock::system(),
        }
    }
}

/// Why a sidecar does not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// A port cannot be had.
    #[error("cannot listen on {address}: {error}")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// Why.
        error: io::Error,
    },
    /// No thread or no runtime.
    #[error("cannot start a worker: {0}")]
    Worker(io::Error),
}

/// A sidecar that has its ports and does not accept yet: what is published now holds for the first request.
#[derive(Debug)]
pub struct Bound {
    sidecar: Sidecar,
    work: Vec<Work>,
    admin: Option<tokio::net::TcpListener>,
    watch: Watch,
    startup_wait: Duration,
}

/// A running sidecar. Dropped, it ends at once.
#[derive(Debug)]
pub struct Sidecar {
    addresses: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    publisher: Publisher,
    metrics: Metrics,
    signal: Signal,
    workers: Vec<Worker>,
    tasks: Vec<JoinHandle<()>>,
}

impl Bound {
    /// Puts policies into force.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        self.sidecar.publisher()
    }

    /// Begins to accept.
    #[must_use]
    pub fn serve(self) -> Sidecar {
        let Self { mut sidecar, work, admin, watch, startup_wait } = self;
        for (worker, work) in sidecar.workers.iter().zip(work) {
            worker.work(work);
        }
        let (publisher, metrics) = (sidecar.publisher.clone(), sidecar.metrics.clone());
        let waited = Arc::new(AtomicBool::new(false));
        sidecar.tasks.push(tokio::spawn(wait(startup_wait, waited.clone(), publisher.clone())));
        let in_flight = publisher.in_flight().clone();
        sidecar.tasks.push(tokio::spawn(in_flight.watch(publisher.clone())));
        sidecar.tasks.push(tokio::spawn(publisher.slots().clone().run()));
        if let Some(listener) = admin {
            let pages = Admin { publisher, metrics, watch, waited };
            sidecar.tasks.push(tokio::spawn(async move {
                if let Err(error) = pages.serve(listener).await {
                    tracing::error!(%error, "the admin port failed");
                }
            }));
        }
        sidecar
    }
}

impl Sidecar {
    /// Binds its ports and begins to accept. To be called within a tokio runtime, which runs the admin port.
    pub fn start(options: Options) -> Result<Self, StartError> {
        Ok(Self::bind(options)?.serve())
    }

    /// Binds its ports. To be called within a tokio runtime.
    pub fn bind(options: Options) -> Result<Bound, StartError> {
        let Options {
            routes,
            admin,
            workers,
            max_connections,
            header_timeout,
            idle_timeout,
            startup_wait,
            clock,
        } = options;
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for route in &routes {
            let fail = |error| StartError::Listen { address: route.listen, error };
            let bound = bind(route.listen, workers.max(1)).map_err(fail)?;
            addresses.push(bound[0].local_addr().map_err(fail)?);
            listeners.push(bound.into_iter());
        }
        let (admin, admin_listener) = match admin {
            None => (None, None),
            Some(address) => {
                let fail = |error| StartError::Listen { address, error };
                let listener = bind(address, 1).map_err(fail)?.remove(0);
                let address = listener.local_addr().map_err(fail)?;
                (Some(address), Some(tokio::net::TcpListener::from_std(listener).map_err(fail)?))
            }
        };
        let workers = (0..workers.max(1)).map(Worker::start).collect::<io::Result<Vec<_>>>();
        let workers = workers.map_err(StartError::Worker)?;
        let current = CurrentLimiter::default();
        let in_flight = InFlight::new();
        let metrics = Metrics::new(current.clone(), in_flight.clone());
        let stores = Stores::new(workers[0].runtime.clone(), clock, current);
        let publisher = Publisher::new(stores, metrics.clone(), in_flight);
        let (signal, watch) = drain::channel();
        let slots = Arc::new(Semaphore::new(max_connections.min(Semaphore::MAX_PERMITS)));
        let mut work = Vec::new();
        let (runs, others) = tokio::sync::mpsc::channel(1);
        let mut others = Some(others);
        for number in 0..workers.len() {
            let upstreams = routes.iter().map(|route| route.upstream.clone());
            let mine = listeners.iter_mut().filter_map(Iterator::next).zip(upstreams);
            work.push(Work {
                listeners: mine.collect(),
                publisher: publisher.clone(),
                metrics: metrics.clone(),
                watch: watch.clone(),
                slots: slots.clone(),
                limits: Limits { head: header_timeout, idle: idle_timeout },
                others: others.take(),
                runs: (number > 0).then(|| runs.clone()),
            });
        }
        let tasks = Vec::new();
        let sidecar = Self { addresses, admin, publisher, metrics, signal, workers, tasks };
        Ok(Bound { sidecar, work, admin: admin_listener, watch, startup_wait })
    }

    /// Where it listens, one address for each route.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Where its admin port is.
    #[must_use]
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Puts policies into force.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        self.publisher.clone()
    }

    /// Everything that it counted, as `/metrics` shows it.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.metrics.text()
    }

    /// Is no longer ready, and ends each connection with its current request; still accepts.
    pub fn close(&self) {
        self.signal.close();
    }

    /// Ends: `delay` is for others to learn that it is no longer ready, while it still accepts; `grace` for what is
    /// in flight after that.
    pub async fn shutdown(self, delay: Duration, grace: Duration) {
        self.signal.close();
        tokio::time::sleep(delay).await;
        self.signal.stop(Instant::now() + grace);
        for worker in self.workers {
            worker.ended().await;
        }
        for task in self.tasks {
            task.abort();
        }
    }
}

async fn wait(patience: Duration, waited: Arc<AtomicBool>, publisher: Publisher) {
    tokio::time::sleep(patience).await;
    waited.store(true, Ordering::Relaxed);
    if !publisher.has_published() {
        tracing::warn!("no policies are known after {patience:?}: everything passes, unlimited");
    }
}
