//! Counters in Redis (6.2 or newer, or Valkey), shared by many processes.
//!
//! The store is a single server, the master behind sentinels, or a cluster. A check travels through these modules in this order:
//! - [`route`]: in a cluster, the server of each key.
//! - [`pipeline`]: the queue and the worker of a server.
//! - [`batch`]: concurrent operations that become one script call.
//! - [`scripts`]: the scripts, and which of them decides an operation; [`library`]: all of them as a function library.
//! - [`script`]: the arguments and the reply of a script.
//!
//! [`options`] describe the servers, and [`connect`] makes connections to them. [`cluster_view`] is what a server of a cluster
//! says about it. [`admin`] maintains users and the
//! library. [`partitions`] spread the keys
//! over the hash slots of a cluster.
//!
//! # Keys
//!
//! `PREFIX SCOPE:{TAG}:HASH`, for example `sluice:NAMESPACE/POLICY/LIMIT:{109}:q83vEjRWeJCrze8SNFZ4kA`.
//! The tag stands for one of 64 partitions, which lie evenly over the hash slots of a cluster. The partition
//! depends on the client's hash only, so all limits of a client share it. The value is a
//! sequence of the records of `sluice-limiter`; it always has a time to live.
//!
//! # Rights
//!
//! A Redis user needs at least these rights (Redis also checks the commands inside a script):
//!
//! ```text
//! ACL SETUSER sluice on >PASSWORD resetkeys ~sluice:* resetchannels -@all +evalsha +eval +time +get +mget +set +setrange
//! ```
//!
//! A database other than 0 also needs `+select`; a cluster needs `+cluster|slots +asking` on all its servers;
//! a master behind sentinels needs `+role` on all servers that may become the master. At the sentinels, if
//! they require a password (the last right is optional: it lets the newest master win where sentinels disagree):
//!
//! ```text
//! ACL SETUSER watcher on >PASSWORD resetkeys resetchannels -@all +sentinel|get-master-addr-by-name +sentinel|master
//! ```
//!
//! # Cluster
//!
//! Servers are reached at the addresses from `CLUSTER SLOTS`, over TLS if the endpoints use it. Their certificates
//! must be valid for these addresses; `cluster-announce-hostname` with `cluster-preferred-endpoint-type
//! hostname` makes them host names. All counters of one client are in one hash slot. Counters of several
//! clients (a limit per client and one for all) may be in several hash slots, which are charged one after
//! another; if one denies, the charges of the others are refunded. While a hash slot moves, each of its keys
//! has a script call of its own.
//!
//! Replication is asynchronous. A master that dies takes with it the charges that its replica had not yet
//! received, and that much may be admitted again.
//!
//! # Failure
//!
//! No check waits longer than the latency budget, which starts when the check arrives. Each call carries its
//! deadline in the server's time, so a call that was given up is not counted later. A call that takes too
//! long fails its own checks only. Three in a row, or any error, open the circuit: waiting and new operations
//! fail immediately, until a new connection has run the script. Each master of a cluster has a circuit of its
//! own.

pub mod admin;
mod batch;
mod cluster_view;
mod connect;
pub mod library;
mod options;
mod partitions;
mod pipeline;
mod route;
mod script;
mod scripts;

use std::sync::Arc;

use sluice_limiter::{Reserved, SlotsFound};
use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant};

use self::batch::{BatchGroup, Operation, Responder};
use self::connect::{ConnectPlan, Connector};
pub use self::options::{
    Calls, ClientCertificate, Endpoint, MAX_PARTITIONS, OptionsError, RedisOptions, Secret, StoreCredentials,
    Tls, Topology,
};
pub use self::pipeline::{LATENCY_BOUNDS_US, RedisMetrics};
use self::pipeline::{MetricsRecorder, Node, PipelineSettings};
use self::route::{Cluster, check_slots, keep_up_to_date};
use self::script::{KeyNames, Scripts};
pub use self::scripts::Script;
use crate::check::{
    CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Lookup, Settlement, Taking,
};
use crate::eviction::Eviction;
use crate::failure::{StoreError, StoreHealth};
use crate::fault_cause::FaultCause;
use crate::store::Store;

/// Maximum number of times that one call acquires a counter's cost.
pub const MAX_ACQUIRED: u64 = 4096;

/// The Redis store. Dropping it ends its tasks and closes its connections.
#[derive(Debug)]
pub struct RedisStore {
    servers: Servers,
    metrics: Arc<MetricsRecorder>,
    names: KeyNames,
    budget: Duration,
}

/// The servers that hold the counters.
#[derive(Debug)]
enum Servers {
    /// A single server, or the master behind sentinels.
    Single(Node),
    /// A cluster, and the task that keeps its map of hash slots up to date.
    Cluster(Arc<Cluster>, JoinHandle<()>),
}

impl RedisStore {
    /// Starts the tasks that talk to Redis. They connect, and reconnect when necessary. Must be called within
    /// a tokio runtime, of either flavour. For TLS the process must have installed the default rustls provider.
    pub fn start(options: RedisOptions) -> Result<Self, OptionsError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| OptionsError::NoRuntime)?;
        let plan = options.validate()?;
        let names = KeyNames::new(options.prefix, options.partitions);
        let (metrics, budget) = (Arc::<MetricsRecorder>::default(), options.latency_budget);
        let may_be_a_proxy = match (&plan, options.calls) {
            (ConnectPlan::Standalone(_) | ConnectPlan::Sentinel(_), Calls::Scripts) => true,
            (ConnectPlan::Cluster { .. }, _) | (_, Calls::Functions) => false,
        };
        let settings = PipelineSettings {
            scripts: Arc::new(Scripts::new(options.calls)),
            names: names.clone(),
            probe_key: may_be_a_proxy.then(|| names.probe()).flatten().map(Arc::from),
            budget,
            metrics: metrics.clone(),
            redirects: None,
        };
        let servers = match plan {
            ConnectPlan::Standalone(target) => {
                Servers::Single(Node::start(&runtime, Connector::Fixed(Arc::new(target)), settings))
            }
            ConnectPlan::Sentinel(sentinels) => {
                Servers::Single(Node::start(&runtime, Connector::Sentinels(Arc::new(sentinels)), settings))
            }
            ConnectPlan::Cluster { seeds, template } => {
                let cluster = Cluster::new(runtime.clone(), settings, seeds, template);
                let refresh = runtime.spawn(keep_up_to_date(Arc::downgrade(&cluster)));
                Servers::Cluster(cluster, refresh)
            }
        };
        Ok(Self { servers, metrics, names, budget })
    }

    async fn decide(&self, check: CheckRequest, deadline: Instant) -> Result<CheckResponse, StoreError> {
        let cluster = match &self.servers {
            Servers::Single(node) => {
                let operation = |caller| Operation::check(check, caller);
                return node.send(BatchGroup::ALL, deadline, operation).await;
            }
            Servers::Cluster(cluster, _) => cluster,
        };
        let groups = cluster.groups(&check, deadline).await?;
        match groups.first() {
            Some(&group) if groups.iter().all(|&other| other == group) => {
                cluster.send(group, deadline, |caller| Operation::check(check, caller)).await
            }
            _ => check_slots(cluster, &check, &groups, deadline).await,
        }
    }

    /// Sends an operation on a single counter and waits for its result. Its error is not counted: only those of checks are, because
    /// what is retried would count many times.
    async fn send<T>(
        &self,
        key: KeyHash,
        limit: &LimitSpec,
        operation: impl FnOnce(Responder<T>) -> Operation,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + self.budget;
        match &self.servers {
            Servers::Single(node) => node.send(BatchGroup::ALL, deadline, operation).await,
            Servers::Cluster(cluster, _) => {
                let group = cluster.group_of(limit, key, deadline).await?;
                cluster.send(group, deadline, operation).await
            }
        }
    }

    /// Returns whether the store evicts counters, as far as it can be read. In a cluster, one master that does is enough.
    #[must_use]
    pub fn eviction(&self) -> Eviction {
        match &self.servers {
            Servers::Single(node) => node.eviction(),
            Servers::Cluster(cluster, _) => cluster.eviction(),
        }
    }

    /// Returns the metrics since the start.
    #[must_use]
    pub fn metrics(&self) -> RedisMetrics {
        self.metrics.snapshot(self.health())
    }

    /// Returns the name of the Redis key that holds a counter.
    #[must_use]
    pub fn key(&self, counter: &Counter) -> String {
        self.names.of_counter(counter)
    }
}

impl Store for RedisStore {
    async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        let deadline = Instant::now() + self.budget;
        self.metrics.record(deadline, self.budget, self.decide(check, deadline)).await
    }

    async fn acquire(&self, counter: Counter, wanted: u64) -> Result<Grant, StoreError> {
        let wanted = wanted.clamp(1, MAX_ACQUIRED);
        let (limit, key) = (counter.limit.clone(), counter.key);
        let deadline = Instant::now() + self.budget;
        let acquired = self.send(key, &limit, |caller| Operation::Acquire(counter, wanted, caller));
        self.metrics.record(deadline, self.budget, acquired).await
    }

    async fn settle(&self, settlement: Settlement) -> Result<SlotsFound, StoreError> {
        let (key, limit) = (settlement.key, settlement.limit.clone());
        match settlement.more() {
            Some(counter) => {
                self.send(key, &limit, |caller| Operation::Charge(counter, caller)).await?;
                Ok(SlotsFound::Enough)
            }
            None => self.send(key, &limit, |caller| Operation::Settle(settlement, caller)).await,
        }
    }

    async fn reset(&self, limit: &Arc<LimitSpec>, key: KeyHash) -> Result<u64, StoreError> {
        let counter = Counter { limit: limit.clone(), key, cost: 0 };
        self.send(key, limit, |caller| Operation::Reset(counter, caller)).await
    }

    async fn find(&self, lookup: Lookup) -> Result<Option<Reserved>, StoreError> {
        let (key, ledger) = (lookup.key, lookup.ledger.clone());
        self.send(key, &ledger, |caller| Operation::Find(lookup, caller)).await
    }

    async fn take(&self, taking: Taking) -> Result<bool, StoreError> {
        let (key, ledger) = (taking.correction.key, taking.ledger.clone());
        let more = taking.correction.more();
        self.send(key, &ledger, |caller| Operation::Take(taking, more, caller)).await
    }

    // A cluster fails while any master that holds counters fails; checks of counters on the other masters succeed nevertheless.
    fn health(&self) -> StoreHealth {
        match &self.servers {
            Servers::Single(node) => node.health(),
            Servers::Cluster(cluster, _) => cluster.health(),
        }
    }

    // In a cluster, that of the first failing master.
    fn fault_cause(&self) -> Option<FaultCause> {
        match &self.servers {
            Servers::Single(node) => node.cause(),
            Servers::Cluster(cluster, _) => cluster.cause(),
        }
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        match self {
            // Its worker ends when its queue closes.
            Self::Single(_) => {}
            Self::Cluster(_, refresh) => refresh.abort(),
        }
    }
}
