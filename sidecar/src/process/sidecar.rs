//! A sidecar within a process: the one of the binary, of `sluice run`, or of a test.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use prometheus_client::registry::Registry;
use sluice_engine::trace::Tracer;
use sluice_engine::{Engine, EngineOptions, Publisher, Reveal};
use tokio::net::TcpListener;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;

use crate::inbound::head_timeout::HeadTimeouts;
use crate::inbound::table::{ConnectionTable, Timeouts};
use crate::metrics::registry::Metrics;
use crate::process::admin::{Admin, Pages};
use crate::process::options::Options;
use crate::process::pressure::relieve;
use crate::process::worker::{Role, Work};
use crate::proxy::{RequestLogs, refusal_reasons};
use crate::upstream::abandoned::AbandonedRequests;
use crate::upstream::application::{Application, Applications};
use crate::upstream::forward::ForwardError;
use crate::upstream::in_flight::InFlight;
use sluice_host::capacity;
use sluice_host::drain::{self, DrainSignal, DrainWatch};
use sluice_host::listen::{ListenError, bind};
use sluice_host::logging::DroppedLines;
use sluice_host::worker::Worker;

/// The reason why a sidecar did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address could not be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A thread or its runtime could not be created.
    #[error("cannot start a worker: {0}")]
    Worker(io::Error),
}

/// A sidecar that has bound its ports and does not accept yet, so that policies published now apply to the
/// first request.
#[derive(Debug)]
pub struct BoundSidecar {
    sidecar: Sidecar,
    work: Vec<Work>,
    admin: Option<TcpListener>,
    debug: Option<TcpListener>,
    drain: DrainWatch,
    startup_wait: Duration,
    table: Arc<ConnectionTable>,
    timeouts: Timeouts,
    head_timeouts: HeadTimeouts,
}

/// A running sidecar. Dropping it ends it immediately.
#[derive(Debug)]
pub struct Sidecar {
    addresses: Vec<SocketAddr>,
    admin: Option<SocketAddr>,
    debug: Option<SocketAddr>,
    engine: Engine,
    in_flight: InFlight,
    metrics: Metrics,
    applications: Applications,
    drain: DrainSignal,
    workers: Vec<Worker>,
    tasks: Vec<JoinHandle<()>>,
    tracer: Option<Arc<Tracer>>,
}

impl BoundSidecar {
    /// Returns the publisher of policies.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        self.sidecar.publisher()
    }

    /// Returns the applications behind the listeners.
    #[must_use]
    pub fn applications(&self) -> Applications {
        self.sidecar.applications()
    }

    /// Starts to accept connections.
    #[must_use]
    pub fn serve(self) -> Sidecar {
        let Self { mut sidecar, work, admin, debug, drain, startup_wait, table, timeouts, head_timeouts } =
            self;
        for (worker, work) in sidecar.workers.iter().zip(work) {
            worker.run(|| work.run());
        }
        let (engine, metrics) = (sidecar.engine.clone(), sidecar.metrics.clone());
        let startup_over = Arc::new(AtomicBool::new(false));
        let startup = await_policies(startup_wait, startup_over.clone(), engine.clone());
        sidecar.tasks.push(tokio::spawn(startup));
        sidecar.tasks.push(tokio::spawn(watch_load(sidecar.in_flight.clone(), engine.clone())));
        sidecar.tasks.push(tokio::spawn(engine.clone().run()));
        sidecar.tasks.push(tokio::spawn(table.clone().sweep(timeouts)));
        sidecar.tasks.push(tokio::spawn(relieve(table.clone())));
        for (listener, pages) in [(admin, Pages::Admin), (debug, Pages::Debug)] {
            let Some(listener) = listener else { continue };
            let admin = Admin {
                engine: engine.clone(),
                metrics: metrics.clone(),
                drain: drain.clone(),
                startup_over: startup_over.clone(),
                table: table.clone(),
                timeouts: head_timeouts,
                pages,
            };
            sidecar.tasks.push(tokio::spawn(admin.serve(listener)));
        }
        sidecar
    }
}

impl Sidecar {
    /// Binds the ports and starts to accept connections. Must be called within a tokio runtime, which runs
    /// the admin port.
    pub fn start(options: Options) -> Result<Self, StartError> {
        Ok(Self::bind(options)?.serve())
    }

    /// Binds the ports. Must be called within a tokio runtime.
    pub fn bind(options: Options) -> Result<BoundSidecar, StartError> {
        let Options {
            routes,
            listen_name,
            pod_addresses,
            admin,
            debug,
            workers,
            max_connections,
            header_timeout,
            idle_timeout,
            body_timeout,
            http2_idle_timeout,
            upgrade_idle_timeout,
            startup_wait,
            startup_policy,
            debug_headers,
            tracing,
            clock,
        } = options;
        let mut listeners = Vec::new();
        let mut addresses = Vec::new();
        for route in &routes {
            let bound = bind(route.listen, listen_name, workers.max(1))?;
            addresses.push(bound[0].local_addr().unwrap_or(route.listen));
            listeners.push(bound.into_iter());
        }
        let page =
            |address: Option<SocketAddr>, name| address.map(|address| bind_page(address, name)).transpose();
        let (admin, admin_listener) = page(admin, "--admin")?.unzip();
        let (debug, debug_listener) = page(debug, "--debug")?.unzip();
        let workers = (0..workers.max(1)).map(Worker::start).collect::<io::Result<Vec<_>>>();
        let workers = workers.map_err(StartError::Worker)?;
        let in_flight = InFlight::new();
        let applications = Applications::new(
            routes.into_iter().map(|route| Application::new(route.upstream, &pod_addresses)),
        );
        let mut registry = Registry::with_prefix("sluice");
        let options = EngineOptions {
            runtime: workers[0].runtime.clone(),
            clock,
            startup_policy,
            local_quota_keys: capacity::local_keys(),
            memory_keys: capacity::memory_keys(),
            load: in_flight.load.clone(),
        };
        let engine = Engine::start(options, &mut registry);
        registry.register_collector(Box::new(in_flight.clone()));
        registry.register_collector(Box::new(applications.clone()));
        registry.register_collector(Box::new(AbandonedRequests));
        registry.register_collector(Box::new(DroppedLines));
        let metrics = Metrics::new(registry);
        metrics.add_reasons(ForwardError::REASONS, refusal_reasons());
        let tracer = tracing.and_then(|options| Tracer::start(&options, metrics.spans.clone()));
        let (signal, drain) = drain::channel();
        let table = ConnectionTable::new(max_connections, metrics.ended_streams.clone());
        let head_timeouts = HeadTimeouts { head: header_timeout, idle: idle_timeout };
        let timeouts = Timeouts {
            body: body_timeout,
            http2_idle: http2_idle_timeout,
            upgrade_idle: upgrade_idle_timeout,
        };
        let other_workers = TaskTracker::new();
        let (mut work, logs) = (Vec::new(), Arc::<RequestLogs>::default());
        for number in 0..workers.len() {
            let applications = applications.iter().cloned();
            work.push(Work {
                listeners: listeners.iter_mut().filter_map(Iterator::next).zip(applications).collect(),
                engine: engine.clone(),
                in_flight: in_flight.clone(),
                metrics: metrics.clone(),
                drain: drain.clone(),
                table: table.clone(),
                timeouts: head_timeouts,
                reveal: if debug_headers { Reveal::Faults } else { Reveal::Nothing },
                logs: logs.clone(),
                tracer: tracer.clone(),
                role: match number {
                    0 => Role::Main { others: other_workers.clone() },
                    _ => Role::Other { _running: other_workers.token() },
                },
            });
        }
        let tasks = Vec::new();
        let sidecar = Self {
            addresses,
            admin,
            debug,
            engine,
            in_flight,
            metrics,
            applications,
            drain: signal,
            workers,
            tasks,
            tracer,
        };
        let (admin, debug) = (admin_listener, debug_listener);
        Ok(BoundSidecar { sidecar, work, admin, debug, drain, startup_wait, table, timeouts, head_timeouts })
    }

    /// Returns the addresses that it listens on, one for each route.
    #[must_use]
    pub fn addresses(&self) -> &[SocketAddr] {
        &self.addresses
    }

    /// Returns the address of the admin port.
    #[must_use]
    pub fn admin(&self) -> Option<SocketAddr> {
        self.admin
    }

    /// Returns the address of the debug port.
    #[must_use]
    pub fn debug(&self) -> Option<SocketAddr> {
        self.debug
    }

    /// Returns the publisher of policies.
    #[must_use]
    pub fn publisher(&self) -> Publisher {
        self.engine.publisher().clone()
    }

    /// Returns the applications behind the listeners.
    #[must_use]
    pub fn applications(&self) -> Applications {
        self.applications.clone()
    }

    /// Returns all metrics, in the `OpenMetrics` text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.metrics.text()
    }

    /// Becomes unready, and ends each connection with its current request. New connections are still
    /// accepted.
    pub fn drain(&self) {
        self.drain.drain();
    }

    /// Drains for `delay`, in which Kubernetes removes the pod from its endpoints, then stops accepting, and
    /// ends when the requests in flight have ended or `grace` is over.
    pub async fn shutdown(self, delay: Duration, grace: Duration) {
        self.drain.drain();
        tokio::time::sleep(delay).await;
        self.drain.stop(Instant::now() + grace);
        for worker in self.workers {
            worker.ended().await;
        }
        for task in self.tasks {
            task.abort();
        }
        if let Some(tracer) = self.tracer {
            tracer.end().await;
        }
    }
}

fn bind_page(address: SocketAddr, name: &'static str) -> Result<(SocketAddr, TcpListener), ListenError> {
    let listener = bind(address, name, 1)?.remove(0);
    let bound = listener.local_addr().unwrap_or(address);
    let listener = TcpListener::from_std(listener).map_err(|error| ListenError { address, name, error })?;
    Ok((bound, listener))
}

/// Sets `startup_over` after the time to wait for the first policies.
async fn await_policies(startup_wait: Duration, startup_over: Arc<AtomicBool>, engine: Engine) {
    tokio::time::sleep(startup_wait).await;
    startup_over.store(true, Ordering::Relaxed);
    if engine.denies_all() {
        tracing::warn!("no policies received after {startup_wait:?}: all requests are rejected");
    } else if !engine.publisher().has_published() {
        tracing::warn!("no policies received after {startup_wait:?}: all requests pass without limits");
    }
}

/// Measures the load of the application while an elastic limit needs it.
async fn watch_load(in_flight: InFlight, engine: Engine) {
    in_flight.watch(|| engine.is_elastic(), || engine.report_boosted()).await;
}
