//! Administers all servers of a store.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::Mutex;
use tokio::time::{Instant, timeout};

use super::nodes::{Node, connect, find_nodes, run};
use super::provision::{KnownUsers, Memory, provision};
use super::report::{Problem, Role, ServerReport};
use super::users::ManagedUser;
use crate::fault_cause::FaultCause;
use crate::redis::connect::ConnectPlan;
use crate::redis::options::{OptionsError, RedisOptions};
use crate::redis::partitions::Partitions;

/// Longest time for all servers.
const LONGEST_PASS: Duration = Duration::from_secs(60);
/// Time for which an eviction is reported.
const RECENT: Duration = Duration::from_secs(600);

/// Administers a store with the credentials of an administrator.
pub struct Administrator {
    options: RedisOptions,
    plan: ConnectPlan,
    /// The hash slots that have counters, in order.
    used: Vec<u16>,
    /// Knowledge about each server, by its address.
    known: Mutex<BTreeMap<String, Known>>,
}

/// Knowledge about a server from the pass before.
#[derive(Default)]
struct Known {
    /// The users as they were set last.
    users: KnownUsers,
    /// Number of keys that the server had evicted.
    evicted: Option<u64>,
    /// Time at which that number was seen to have grown.
    last_eviction: Option<Instant>,
}

impl Administrator {
    /// Prepares to administer a store. `options` have the credentials of its administrator.
    pub fn new(options: RedisOptions) -> Result<Self, OptionsError> {
        let plan = options.validate()?;
        let mut used: Vec<u16> = Partitions::new(options.partitions).slots().collect();
        used.sort_unstable();
        Ok(Self { options, plan, used, known: Mutex::default() })
    }

    /// Brings all servers up to date: sets these users and removes others of the same installation, and loads the
    /// library. Returns a report for each server, or the reason why they cannot be found.
    pub async fn provision(&self, users: &[ManagedUser]) -> Result<Vec<ServerReport>, Problem> {
        let slow = Problem { cause: FaultCause::Slow, command: "" };
        timeout(LONGEST_PASS, self.pass(users)).await.unwrap_or(Err(slow))
    }

    async fn pass(&self, users: &[ManagedUser]) -> Result<Vec<ServerReport>, Problem> {
        let nodes = find_nodes(&self.plan, &self.used).await?;
        let mut known = self.known.lock().await;
        known.retain(|address, _| nodes.iter().any(|node| node.target.address == *address));
        let servers = nodes.into_iter().map(|node| {
            let before = known.remove(&node.target.address).unwrap_or_default();
            self.provision_one(node, before, users)
        });
        let mut reports = Vec::new();
        for (report, server) in join_all(servers).await {
            known.insert(report.address.clone(), server);
            reports.push(report);
        }
        Ok(reports)
    }

    /// Changes settings of all masters and replicas. What a server rejects is logged.
    pub async fn set(&self, settings: &[(&str, String)]) {
        let mut command = redis::cmd("CONFIG");
        command.arg("SET");
        for (name, value) in settings {
            command.arg(name).arg(value);
        }
        for node in find_nodes(&self.plan, &self.used)
            .await
            .into_iter()
            .flatten()
            .filter(|node| node.role != Role::Sentinel)
        {
            let set = async {
                let mut connection = connect(&node.target).await?;
                run(&mut connection, "CONFIG SET", &command).await
            };
            if let Err(problem) = set.await {
                tracing::warn!(
                    address = node.target.address,
                    "settings could not be changed: {}",
                    problem.cause
                );
            }
        }
    }

    async fn provision_one(
        &self,
        node: Node,
        mut known: Known,
        users: &[ManagedUser],
    ) -> (ServerReport, Known) {
        let result = provision(&node, &mut known.users, &self.options, users).await;
        let (problem, memory) = match result {
            Ok(memory) => (None, memory.unwrap_or_default()),
            Err(problem) => (Some(problem), Memory::default()),
        };
        if memory.evicted.zip(known.evicted).is_some_and(|(now, before)| now > before) {
            known.last_eviction = Some(Instant::now());
        }
        known.evicted = memory.evicted.or(known.evicted);
        let report = ServerReport {
            address: node.target.address.clone(),
            role: node.role,
            problem,
            memory: memory.used,
            eviction: memory.eviction,
            has_evicted: known.last_eviction.is_some_and(|last| last.elapsed() < RECENT),
        };
        (report, known)
    }
}
