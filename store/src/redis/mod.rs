//! Counters in Redis (6.2 or newer, or Valkey), shared by many processes.
//!
//! A check travels through these modules in this order:
//! - [`options`]: which servers there are and how to reach them; [`url`]: the same in one string; [`target`]: one of
//!   them.
//! - [`cluster`]: which server has which key, by its [slot](slots); [`parts`]: a check that several servers decide.
//! - [`node`]: a server as the others see it: what waits for it, and its circuit.
//! - [`queue`]: a check and who waits for it, bounded in number and in time.
//! - [`batch`]: checks that wait become one call; equal ones merge; each key is named once.
//! - [`script`]: the one script, and how it is called; [`call`]: calls on their way.
//! - [`reply`]: what the script says becomes the answers, by the limiter's own functions.
//! - [`worker`]: the one task a server that does all this, and opens and closes the circuit.
//! - [`connect`]: a connection that was seen to work, or what is wrong; how long to wait before the next attempt.
//! - [`sentinel`]: who the master is.
//! - [`fault`]: what an error of Redis means.
//! - [`metrics`]: what happened, in numbers.
//!
//! # Keys
//!
//! `PREFIX SCOPE:{PARTITION}:HASH`, that is `sluice:NAMESPACE/POLICY/LIMIT:{17}:q83vEjRWeJCrze8SNFZ4kA`. The partition
//! comes from the client's hash alone, so that all limits of one client share it. The value is the records of
//! `sluice-limiter`, one after another; it always has a time to live.
//!
//! # Rights
//!
//! The least that a Redis user needs (Redis checks the commands inside a script too):
//!
//! ```text
//! ACL SETUSER sluice on >PASSWORD resetkeys ~sluice:* resetchannels -@all +evalsha +eval +time +get +mget +set +setrange
//! ```
//!
//! A database other than 0 also needs `+select`; a cluster `+cluster|slots +asking`, on all its servers; a master behind
//! sentinels `+role`, on all servers that may become it. At the sentinels, if they ask for a password:
//!
//! ```text
//! ACL SETUSER watcher on >PASSWORD resetkeys resetchannels -@all +sentinel|get-master-addr-by-name
//! ```
//!
//! # Cluster
//!
//! Servers are reached at the addresses that `CLUSTER SLOTS` tells, over TLS if the URLs say so: their certificates must
//! hold for these addresses (`cluster-announce-hostname` with `cluster-preferred-endpoint-type hostname` tells names).
//! A check names counters of one client, which are together; counters of several clients (a limit for each client and
//! one for all) may lie in several slots, which are asked one after another: what one part took is given back when
//! another denies. While a slot moves, each key of it is asked for by itself.
//!
//! Replication is asynchronous: a master that dies takes with it what its replica had not yet heard, and so much may be
//! admitted again.
//!
//! # Failure
//!
//! No check waits longer than the latency budget, which counts from its arrival. A call carries its deadline in the
//! server's time, so what was given up here is not counted there later. One call that takes too long fails its own
//! checks only; three in a row, or any error, open the circuit: all who wait are answered at once, and so is whoever
//! comes, until a new connection was seen to work. Each master of a cluster has a circuit of its own.

mod batch;
mod call;
mod cluster;
mod connect;
mod fault;
mod metrics;
mod node;
mod options;
mod parts;
mod queue;
mod reply;
mod request;
mod runs;
mod script;
mod sentinel;
mod slots;
mod target;
mod url;
mod worker;

use std::sync::{Arc, Weak};

use tokio::task::JoinHandle;
use tokio::time::{Duration, Instant};

pub use metrics::{LATENCY_BOUNDS_US, RedisMetrics};
pub use options::{ClientCertificate, OptionsError, RedisOptions, Secret, Topology};
pub use script::CHECK_LUA;

use crate::check::{CheckRequest, CheckResponse, Counter, Grant, KeyHash, LimitSpec, Settlement};
use crate::failure::{StoreError, StoreHealth};
use cluster::Cluster;
use connect::Way;
use metrics::Shared;
use node::{Caller, Lane, Node};
use options::Plan;
use queue::Ask;
use sentinel::Sentinels;
use worker::Setting;

/// The most that one call takes.
pub const MAX_TAKEN: u64 = 4096;

/// The Redis store. Dropping it ends its tasks and its connections.
#[derive(Debug)]
pub struct RedisStore {
    servers: Servers,
    shared: Arc<Shared>,
    keys: batch::Keys,
    budget: Duration,
}

/// Who is asked.
#[derive(Debug)]
enum Servers {
    /// One server, or the master that sentinels name.
    One(Node),
    Cluster(Arc<Cluster>, JoinHandle<()>),
}

impl RedisStore {
    /// Starts the tasks that talk to Redis; they connect by themselves and again whenever they must. To be called within
    /// a tokio runtime, of either flavour. For `rediss://` the process must have installed rustls's default provider.
    pub fn start(options: RedisOptions) -> Result<Self, OptionsError> {
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| OptionsError::NoRuntime)?;
        let plan = options.validate()?;
        let keys = batch::Keys { prefix: options.prefix.into(), partitions: options.partitions };
        let (shared, budget) = (Arc::<Shared>::default(), options.latency_budget);
        let setting = Setting {
            script: Arc::new(script::Script::new()),
            keys: keys.clone(),
            budget,
            shared: shared.clone(),
            cluster: Weak::new(),
        };
        let servers = match plan {
            Plan::Standalone(target) => {
                Servers::One(Node::start(&runtime, Way::Fixed(Arc::new(target)), setting))
            }
            Plan::Sentinel { sentinels, master, reach } => {
                let sentinels = Sentinels::new(sentinels, master, reach);
                Servers::One(Node::start(&runtime, Way::Sentinels(Arc::new(sentinels)), setting))
            }
            Plan::Cluster { seeds, reach } => {
                let cluster = Cluster::new(runtime.clone(), setting, seeds, reach);
                let keeper = runtime.spawn(cluster::keep(Arc::downgrade(&cluster)));
                Servers::Cluster(cluster, keeper)
            }
        };
        Ok(Self { servers, shared, keys, budget })
    }

    /// Decides a check, within the latency budget.
    ///
    /// # Errors
    /// No answer: too late, too many waiting, or the store is failing. Nothing was consumed as far as the store could
    /// see to it.
    pub async fn check(&self, check: CheckRequest) -> Result<CheckResponse, StoreError> {
        let deadline = Instant::now() + self.budget;
        self.shared.asked(deadline, self.budget, self.decide(check, deadline)).await
    }

    async fn decide(&self, check: CheckRequest, deadline: Instant) -> Result<CheckResponse, StoreError> {
        let cluster = match &self.servers {
            Servers::One(node) => {
                return node.ask(Lane::ALL, deadline, |caller| Ask::Check(check, caller)).await;
            }
            Servers::Cluster(cluster, _) => cluster,
        };
        let lanes = cluster.lanes(&check, deadline).await?;
        match lanes.first() {
            Some(&lane) if lanes.iter().all(|&other| other == lane) => {
                cluster.ask(lane, deadline, |caller| Ask::Check(check, caller)).await
            }
            _ => parts::check(cluster, &check, &lanes, deadline).await,
        }
    }

    /// Takes up to `wanted` times a counter's cost at once, at most [`MAX_TAKEN`]: as if so many asked one after another.
    ///
    /// # Errors
    /// As [`RedisStore::check`].
    pub async fn take(&self, counter: Counter, wanted: u64) -> Result<Grant, StoreError> {
        let wanted = wanted.clamp(1, MAX_TAKEN);
        self.ask(counter.key, &counter.limit.clone(), |caller| Ask::Take(counter, wanted, caller)).await
    }

    /// Corrects a charge. It is sent once: if no answer comes, it may or may not have been done.
    ///
    /// # Errors
    /// As [`RedisStore::check`].
    pub async fn settle(&self, settlement: Settlement) -> Result<(), StoreError> {
        let limit = settlement.limit.clone();
        self.ask(settlement.key, &limit, |caller| Ask::Settle(settlement, caller)).await
    }

    /// Asks what one counter answers.
    async fn ask<T>(
        &self,
        key: KeyHash,
        limit: &LimitSpec,
        ask: impl FnOnce(Caller<T>) -> Ask,
    ) -> Result<T, StoreError> {
        let deadline = Instant::now() + self.budget;
        let answer = async {
            match &self.servers {
                Servers::One(node) => node.ask(Lane::ALL, deadline, ask).await,
                Servers::Cluster(cluster, _) => {
                    let lane = cluster.lane_of(limit, key, deadline).await?;
                    cluster.ask(lane, deadline, ask).await
                }
            }
        };
        self.shared.asked(deadline, self.budget, answer).await
    }

    /// How the store is doing. A cluster fails while any of the masters does that hold counters; checks of the others are
    /// answered nevertheless.
    #[must_use]
    pub fn health(&self) -> StoreHealth {
        match &self.servers {
            Servers::One(node) => node.circuit.health(),
            Servers::Cluster(cluster, _) => cluster.health(),
        }
    }

    /// What happened so far.
    #[must_use]
    pub fn metrics(&self) -> RedisMetrics {
        self.shared.metrics(self.health())
    }

    /// The key that holds a counter.
    #[must_use]
    pub fn key(&self, counter: &Counter) -> String {
        self.keys.name(counter)
    }
}

impl Drop for Servers {
    fn drop(&mut self) {
        match self {
            // Its task ends with its queue.
            Self::One(_) => {}
            Self::Cluster(_, keeper) => keeper.abort(),
        }
    }
}
