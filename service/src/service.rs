//! A service within a process: the one of the binary, of `sluice serve`, or of a test.

use std::collections::BTreeMap;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use arc_swap::ArcSwap;
use axum::body::Body;
use axum::{Extension, Router, middleware};
use futures::future::{OptionFuture, join};
use http::request::Parts;
use http::{HeaderMap, Response};
use prometheus_client::registry::Registry;
use sluice_config::message::{PolicyUid, Replica};
use sluice_config::store_access::StoreChoices;
use sluice_config::{Nack, PreparedPolicy};
use sluice_engine::per_second::LogSampler;
use sluice_engine::trace::{SpanMetrics, TraceOptions, Tracer};
use sluice_engine::{Engine, EngineOptions, FollowedFiles, Load, Publisher, StartupPolicy};
use sluice_host::capacity;
use sluice_host::drain::{self, DrainSignal};
use sluice_host::listen::{ListenError, bind};
use sluice_host::logging::DroppedLines;
use sluice_host::serve::ConnectionAge;
use sluice_host::worker::Worker;
use sluice_store::Clock;
use tokio::sync::watch;
use tokio::task::JoinHandle;
use tokio::time::Instant;
use tokio_util::task::TaskTracker;
use tonic_health::server::HealthReporter;

use crate::auth;
use crate::authorizer::{Authorizer, AuthorizerArgs};
use crate::authz;
use crate::callers::{Callers, Sender};
use crate::checks::Checks;
use crate::door::{self, Door};
use crate::grpc::{self, Methods};
use crate::heads::Heads;
use crate::health::{self, Health, Loaded};
use crate::messages::{CheckRequest, CheckResponse};
use crate::metrics::Metrics;
use crate::pages::Pages;
use crate::rls::{Rls, RlsOptions};
use crate::tls::{Certificates, TlsError, TlsFiles};

/// Time that a caller of the gRPC port has to begin, after which pings find out whether it is there; and one of the port for checks.
const BEGIN_GRPC: Duration = Duration::from_secs(10);
const BEGIN_HTTP: Duration = Duration::from_secs(60);

/// The options of a service. A port that is not named is closed.
#[derive(Debug, Clone)]
pub struct Options {
    /// Address of the gRPC port.
    pub grpc: SocketAddr,
    /// Address of ratelimit's HTTP port.
    pub http: Option<SocketAddr>,
    /// Address of the port for checks of applications.
    pub checks: Option<SocketAddr>,
    /// Whether a request may be checked by the policies of all namespaces: there is one user.
    pub is_of_one_user: bool,
    /// Address of the admin port.
    pub admin: Option<SocketAddr>,
    /// Address of the debug port. It tells who is limited, and should not be reached from other pods.
    pub debug: Option<SocketAddr>,
    /// Address of ratelimit's debug port.
    pub ratelimit_debug: Option<SocketAddr>,
    /// Address and path of metrics beside those of the admin port.
    pub prometheus: Option<(SocketAddr, String)>,
    /// Number of workers.
    pub workers: usize,
    /// Maximum number of connections of gateways and applications.
    pub max_connections: usize,
    /// Certificates of the gRPC port. Without them it speaks no TLS.
    pub tls: Option<TlsFiles>,
    /// Who may ask. Without it, whoever reaches the gRPC port.
    pub callers: Option<Callers>,
    /// Age at which connections end.
    pub age: ConnectionAge,
    /// An authorizer of the user's own behind `authz` and `auth`.
    pub authorizer: AuthorizerArgs,
    /// Time for which gateways wait at `authz` and `auth`, if they do not say so.
    pub auth_timeout: Duration,
    /// The contents of answers beside the decision.
    pub rls: RlsOptions,
    /// Whether questions are answered before the first rules have come, with an error. Without it, connections wait for them.
    pub answers_without_rules: bool,
    /// Whether the service is unhealthy while it has no domain.
    pub is_unhealthy_without_domains: bool,
    /// Collector of spans, if there is one.
    pub tracing: Option<TraceOptions>,
    /// Clock of a memory store.
    pub clock: Clock,
}

impl Options {
    /// Creates options with defaults: one worker, no TLS, no other port, no tracing, and connections that end after 5 minutes.
    #[must_use]
    pub fn new(grpc: SocketAddr) -> Self {
        Self {
            grpc,
            http: None,
            checks: None,
            is_of_one_user: false,
            admin: None,
            debug: None,
            ratelimit_debug: None,
            prometheus: None,
            workers: 1,
            max_connections: capacity::connections(),
            tls: None,
            callers: None,
            age: ConnectionAge { max: Some(Duration::from_secs(300)), grace: Some(Duration::from_secs(30)) },
            authorizer: AuthorizerArgs::default(),
            auth_timeout: Duration::from_millis(200),
            rls: RlsOptions::default(),
            answers_without_rules: false,
            is_unhealthy_without_domains: false,
            tracing: None,
            clock: Clock::system(),
        }
    }
}

/// The reason why a service did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// An address could not be bound.
    #[error(transparent)]
    Listen(#[from] ListenError),
    /// A certificate cannot be used.
    #[error(transparent)]
    Tls(#[from] TlsError),
    /// A thread or its runtime could not be created.
    #[error("cannot start a worker: {0}")]
    Worker(io::Error),
    /// The definitions of the gRPC port are inconsistent, which is a defect.
    #[error("cannot describe the gRPC port: {0}")]
    Reflection(#[from] tonic_reflection::server::Error),
}

/// A running service. Dropping it ends it immediately.
#[derive(Debug)]
pub struct Service {
    grpc: SocketAddr,
    checks: Option<SocketAddr>,
    pages: Vec<SocketAddr>,
    engine: Engine,
    metrics: Metrics,
    rls: Arc<Rls>,
    heads: Arc<Heads>,
    routes: Router,
    /// Ends the ports of pages.
    _pages_drain: DrainSignal,
    rules: Arc<ArcSwap<String>>,
    loaded: watch::Sender<Loaded>,
    health: HealthReporter,
    drain: DrainSignal,
    workers: Vec<Worker>,
    tasks: Vec<JoinHandle<()>>,
    tracer: Option<Arc<Tracer>>,
}

/// Publishes the configuration of a service. Clones share it.
#[derive(Debug, Clone)]
pub struct Publication {
    engine: Engine,
    metrics: Metrics,
    rules: Arc<ArcSwap<String>>,
    loaded: watch::Sender<Loaded>,
    stores: StoreChoices,
    published: Arc<Mutex<Published>>,
}

/// A policy with its id.
type Policy = (PolicyUid, Arc<PreparedPolicy>);

/// Parts of a publication.
#[derive(Debug, Default)]
struct Published {
    domains: Vec<Policy>,
    policies: Vec<Policy>,
}

impl Publication {
    /// Activates these domains, and no others, and shows `rules` as what is in force.
    pub fn publish(&self, domains: &[Policy], rules: String) -> Vec<(PolicyUid, Nack)> {
        let nacked = self.replace(|published| published.domains = domains.to_vec());
        self.rules.store(Arc::new(rules));
        self.metrics.loaded(nacked.is_empty());
        nacked
    }

    /// Activates these policies beside the domains, and no others.
    pub fn publish_policies(&self, policies: &[Policy]) -> Vec<(PolicyUid, Nack)> {
        self.replace(|published| published.policies = policies.to_vec())
    }

    fn replace(&self, change: impl FnOnce(&mut Published)) -> Vec<(PolicyUid, Nack)> {
        // No statement that changes it can panic halfway.
        let mut published = self.published.lock().unwrap_or_else(PoisonError::into_inner);
        change(&mut published);
        let all: Vec<_> = published.domains.iter().chain(&published.policies).cloned().collect();
        let nacked = self.engine.publisher().publish(&self.stores, &all);
        let loaded = if all.is_empty() { Loaded::WithoutDomains } else { Loaded::Rules };
        self.loaded.send_replace(loaded);
        nacked
    }

    /// Sets the replicas of policies.
    pub fn set_replicas(&self, replicas: &BTreeMap<PolicyUid, Replica>) {
        self.engine.publisher().set_replicas(replicas);
    }

    /// Returns the files that are followed.
    #[must_use]
    pub fn files(&self) -> &FollowedFiles {
        self.engine.publisher().files()
    }

    /// Counts a configuration that was rejected.
    pub fn rejected(&self) {
        self.metrics.loaded(false);
    }
}

impl Service {
    /// Binds the ports. Connections of gateways are accepted from the first publication on, unless the options say that questions are
    /// answered with an error until then. Must be called within a tokio runtime, which serves the pages.
    ///
    /// # Errors
    /// A port, a certificate or a worker cannot be had.
    pub async fn start(options: Options) -> Result<Self, StartError> {
        let Options {
            grpc,
            http,
            checks,
            is_of_one_user,
            admin,
            debug,
            ratelimit_debug,
            prometheus,
            workers,
            max_connections,
            tls,
            callers,
            age,
            authorizer,
            auth_timeout,
            rls,
            answers_without_rules,
            is_unhealthy_without_domains,
            tracing,
            clock,
        } = options;
        let certificates = tls.map(Certificates::read).transpose()?;
        // In place of ratelimit, there are variables alone.
        let name = |flag, variable| if http.is_some() { variable } else { flag };
        let listeners = bind(grpc, name("--grpc", "GRPC_PORT"), workers.max(1))?;
        let bound = listeners[0].local_addr().unwrap_or(grpc);
        let check_listeners = match checks {
            Some(address) => bind(address, "--http", workers.max(1))?,
            None => Vec::new(),
        };
        let checks = check_listeners.first().and_then(|listener| listener.local_addr().ok());
        let page =
            |address: Option<SocketAddr>, name| address.map(|address| bind_page(address, name)).transpose();
        let http = page(http, "PORT")?;
        let admin = page(admin, name("--admin", "SLUICE_ADMIN"))?;
        let debug = page(debug, name("--debug", "SLUICE_DEBUG"))?;
        let ratelimit_debug = page(ratelimit_debug, "DEBUG_PORT")?;
        let (prometheus, prometheus_path) = prometheus.unzip();
        let prometheus = page(prometheus, "PROMETHEUS_ADDR")?.zip(prometheus_path);
        let workers = (0..listeners.len()).map(Worker::start).collect::<io::Result<Vec<_>>>();
        let workers = workers.map_err(StartError::Worker)?;
        let mut registry = Registry::with_prefix("sluice");
        let engine = Engine::start(
            EngineOptions {
                runtime: workers[0].runtime.clone(),
                clock,
                startup_policy: StartupPolicy::Deny,
                local_quota_keys: capacity::local_keys(),
                memory_keys: capacity::memory_keys(),
                load: Load::default(),
            },
            &mut registry,
        );
        registry.register_collector(Box::new(DroppedLines));
        let spans = SpanMetrics::register(&mut registry);
        if let Some(callers) = &callers {
            callers.register(&mut registry);
        }
        let tracer = tracing.and_then(|options| Tracer::start(&options, spans));
        let authorizer = Authorizer::new(authorizer, &mut registry);
        let metrics = Metrics::new(registry);
        let rls = Arc::new(Rls {
            engine: engine.clone(),
            options: rls,
            metrics: metrics.clone(),
            log: LogSampler::default(),
        });
        let (signal, drain) = drain::channel();
        let (health, health_server) = tonic_health::server::health_reporter();
        let (loaded, watched) = watch::channel(Loaded::default());
        let is_healthy =
            Health { loaded: watched, answers_without_rules, needs_domains: is_unhealthy_without_domains };
        let rules = Arc::<ArcSwap<String>>::default();
        let pages = Pages {
            engine: engine.clone(),
            rls: rls.clone(),
            metrics: metrics.clone(),
            drain: drain.clone(),
            rules: rules.clone(),
            health: is_healthy.clone(),
            callers: callers.clone(),
        };
        let (mut tasks, mut addresses) = (Vec::new(), Vec::new());
        // Probes are answered while the service drains.
        let (pages_drain, pages_open) = drain::channel();
        let mut routers: Vec<(TcpListener, Router)> = Vec::new();
        routers.extend(http.map(|listener| (listener, pages.clone().http())));
        routers.extend(admin.map(|listener| (listener, pages.clone().admin())));
        routers.extend(debug.map(|listener| (listener, pages.clone().debug())));
        routers.extend(ratelimit_debug.map(|listener| (listener, pages.clone().ratelimit_debug())));
        routers.extend(prometheus.map(|(listener, path)| (listener, pages.clone().prometheus(&path))));
        for (listener, router) in routers {
            addresses.extend(listener.local_addr());
            let port = door::page_port(router, &metrics.ports, pages_open.clone());
            tasks.push(tokio::spawn(async {
                port.run(listener).await;
            }));
        }
        tasks.push(tokio::spawn(engine.clone().run()));
        tasks.push(tokio::spawn(is_healthy.clone().follow(health.clone(), drain.clone())));
        if let Some(certificates) = &certificates {
            tasks.push(tokio::spawn(certificates.clone().follow(engine.publisher().files().clone())));
        }
        if let Some(callers) = &callers {
            tasks.push(tokio::spawn(callers.clone().follow(engine.publisher().files().clone())));
        }
        let checks_of_callers = Checks {
            engine: engine.clone(),
            metrics: metrics.clone(),
            callers: callers.clone(),
            is_of_one_user,
        };
        let mut routes = checks_of_callers.routes().merge(grpc::routes(health_server)?);
        // Questions in JSON are for whoever may ask by gRPC without saying who he is.
        if callers.is_none() {
            routes = routes.merge(pages.clone().http().layer(middleware::from_fn(door::refuse_browsers)));
        }
        let has_callers = callers.is_some();
        let heads = Arc::new(Heads {
            engine: engine.clone(),
            metrics: metrics.clone(),
            callers: callers.clone(),
            is_of_one_user,
            authorizer,
            timeout: auth_timeout,
            log: LogSampler::default(),
        });
        let methods = Methods { rls: rls.clone(), heads: heads.clone(), tracer: tracer.clone(), callers };
        let door = Door::new(routes.clone(), methods.into(), certificates, has_callers);
        let table = door::table(max_connections, &metrics.ports);
        let port = |first| door.clone().port(table.clone(), first, age, drain.clone());
        let others = TaskTracker::new();
        let mut check_listeners = check_listeners.into_iter();
        for (number, (worker, listener)) in workers.iter().zip(listeners).enumerate() {
            let grpc = port(BEGIN_GRPC).run(listener);
            let checks = check_listeners.next().map(|listener| port(BEGIN_HTTP).run(listener));
            let loaded = (!answers_without_rules).then(|| is_healthy.loaded.clone());
            let mut stop = drain.clone();
            let (others, engine) = (others.clone(), engine.clone());
            let token = (number > 0).then(|| others.token());
            worker.run(move || async move {
                if let Some(mut loaded) = loaded {
                    tokio::select! {
                        _ = loaded.wait_for(|loaded| *loaded != Loaded::Nothing) => {}
                        _ = stop.stopping() => {}
                    }
                }
                let (deadline, _) = join(grpc, OptionFuture::from(checks)).await;
                engine.settle_thread().await;
                if token.is_none() {
                    // It runs the store's tasks, so it ends after everything has been returned to the store.
                    others.close();
                    let _ = tokio::time::timeout_at(deadline, others.wait()).await;
                    engine.close(deadline).await;
                }
                drop(token);
            });
        }
        Ok(Self {
            grpc: bound,
            checks,
            pages: addresses,
            engine,
            metrics,
            rls,
            heads,
            routes,
            _pages_drain: pages_drain,
            rules,
            loaded,
            health,
            drain: signal,
            workers,
            tasks,
            tracer,
        })
    }

    /// Returns what publishes configurations, whose counters are in one store.
    #[must_use]
    pub fn publication(&self, stores: StoreChoices) -> Publication {
        let Self { engine, metrics, rules, loaded, .. } = self;
        let (engine, metrics, rules) = (engine.clone(), metrics.clone(), rules.clone());
        Publication { engine, metrics, rules, loaded: loaded.clone(), stores, published: Arc::default() }
    }

    /// Returns what a session with the operator publishes policies by. Connections are accepted from the first ones on.
    #[must_use]
    pub fn publisher(&self) -> &Publisher {
        self.engine.publisher()
    }

    /// Notes the first policies that come by [`Self::publisher`].
    pub fn follow_policies(&mut self) {
        let (publisher, loaded) = (self.engine.publisher().clone(), self.loaded.clone());
        self.tasks.push(tokio::spawn(async move {
            publisher.published().await;
            loaded.send_replace(Loaded::Rules);
        }));
    }

    /// Returns the door for questions of gateways, which can be asked without the network.
    #[must_use]
    pub fn door(&self) -> &Arc<Rls> {
        &self.rls
    }

    /// Returns the door for checks of applications, which can be asked without the network.
    pub fn check_door(&self) -> Router {
        self.routes.clone().layer(Extension(Sender::local()))
    }

    /// Answers a question at the door `authz`, without the network.
    ///
    /// # Errors
    /// The question names no policies that there are.
    pub async fn authorize(&self, request: CheckRequest) -> Result<CheckResponse, tonic::Status> {
        authz::answer(&self.heads, request, &HeaderMap::new(), &Sender::local(), None).await
    }

    /// Answers a question at the door `auth`, without the network.
    pub async fn auth(&self, head: Parts) -> Response<Body> {
        auth::answer(&self.heads, head, &Sender::local()).await
    }

    /// Returns the address of the gRPC port.
    #[must_use]
    pub fn grpc(&self) -> SocketAddr {
        self.grpc
    }

    /// Returns the address of the port for checks, if there is one.
    #[must_use]
    pub fn checks(&self) -> Option<SocketAddr> {
        self.checks
    }

    /// Returns the addresses of the other ports, in the order of [`Options`].
    #[must_use]
    pub fn pages(&self) -> &[SocketAddr] {
        &self.pages
    }

    /// Returns all metrics, in the `OpenMetrics` text format.
    #[must_use]
    pub fn metrics(&self) -> String {
        self.metrics.text()
    }

    /// Becomes unready and ends connections after their calls for `delay`, in which Kubernetes removes the pod from its endpoints;
    /// then stops accepting, and ends when all calls have ended or `grace` is over.
    pub async fn shutdown(self, delay: Duration, grace: Duration) {
        let Self { health, drain, workers, tasks, tracer, .. } = self;
        drain.drain();
        health::set(&health, false).await;
        tokio::time::sleep(delay).await;
        drain.stop(Instant::now() + grace);
        for worker in workers {
            worker.ended().await;
        }
        tasks.iter().for_each(JoinHandle::abort);
        if let Some(tracer) = tracer {
            tracer.end().await;
        }
    }
}

fn bind_page(address: SocketAddr, name: &'static str) -> Result<TcpListener, ListenError> {
    Ok(bind(address, name, 1)?.remove(0))
}
