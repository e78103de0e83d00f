//! Administers all servers of a store.

use std::collections::BTreeMap;
use std::time::Duration;

use futures::future::join_all;
use tokio::sync::Mutex;
use tokio::time::timeout;

use super::nodes::{Node, connect, find_nodes, run};
use super::provision::{KnownUsers, provision};
use super::report::{Problem, Role, ServerReport};
use super::users::ManagedUser;
use crate::fault_cause::FaultCause;
use crate::redis::options::{ConnectPlan, OptionsError, RedisOptions};

/// Longest time for all servers.
const LONGEST_PASS: Duration = Duration::from_secs(60);

/// Administers a store with the credentials of an administrator.
pub struct Administrator {
    options: RedisOptions,
    plan: ConnectPlan,
    /// The users of each server as they were set last, by the server's address.
    known: Mutex<BTreeMap<String, KnownUsers>>,
}

impl Administrator {
    /// Prepares to administer a store. `options` have the credentials of its administrator.
    pub fn new(options: RedisOptions) -> Result<Self, OptionsError> {
        let plan = options.validate()?;
        Ok(Self { options, plan, known: Mutex::default() })
    }

    /// Brings all servers up to date: sets these users and removes others of the same installation, and loads the
    /// library. Returns a report for each server, or the reason why they cannot be found.
    pub async fn provision(&self, users: &[ManagedUser]) -> Result<Vec<ServerReport>, Problem> {
        let slow = Problem { cause: FaultCause::Slow, command: "" };
        timeout(LONGEST_PASS, self.pass(users)).await.unwrap_or(Err(slow))
    }

    async fn pass(&self, users: &[ManagedUser]) -> Result<Vec<ServerReport>, Problem> {
        let nodes = find_nodes(&self.plan).await?;
        let mut known = self.known.lock().await;
        known.retain(|address, _| nodes.iter().any(|node| node.target.address == *address));
        let servers = nodes.into_iter().map(|node| {
            let before = known.remove(&node.target.address).unwrap_or_default();
            self.provision_one(node, before, users)
        });
        let mut reports = Vec::new();
        for (report, users) in join_all(servers).await {
            known.insert(report.address.clone(), users);
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
        for node in
            find_nodes(&self.plan).await.into_iter().flatten().filter(|node| node.role != Role::Sentinel)
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
        mut known: KnownUsers,
        users: &[ManagedUser],
    ) -> (ServerReport, KnownUsers) {
        let result = provision(&node, &mut known, &self.options, users).await;
        let (problem, memory) = match result {
            Ok(memory) => (None, memory),
            Err(problem) => (Some(problem), None),
        };
        let address = node.target.address.clone();
        (ServerReport { address, role: node.role, problem, memory }, known)
    }
}
