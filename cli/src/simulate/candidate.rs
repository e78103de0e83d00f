//! The policies of one file, which decide the requests of the past.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, anyhow};
use sluice_config::policy::{CompiledLimit, LimitKind};
use sluice_config::{CompiledPolicy, PreparedPolicy};
use sluice_crds::Installation;
use sluice_engine::simulation::{LimitDecision, Simulation};

use super::log::LoggedRequest;
use super::tally::LimitTally;
use crate::run::policy_file::{NamedPolicy, PolicyFile};

/// The policies of one file, with their counters.
pub(super) struct Candidate {
    /// Name of the file.
    pub(super) name: String,
    /// Limits that are left out: they depend on how long requests take.
    pub(super) left_out: Vec<String>,
    /// Warnings of `sluice check`.
    pub(super) warnings: Vec<String>,
    pub(super) admitted: u64,
    pub(super) denied: u64,
    /// The limits of each policy.
    pub(super) limits: Vec<Vec<LimitTally>>,
    policies: Vec<Arc<PreparedPolicy>>,
    simulation: Simulation,
}

impl Candidate {
    /// Loads the policies, with counters that are empty at this time.
    pub(super) fn load(file: &Path, installation: &Installation, begin: u64) -> Result<Self> {
        let (mut left_out, mut warnings) = (Vec::new(), Vec::new());
        let edit = |policy: &mut CompiledPolicy| {
            let is_simulated = |limit: &CompiledLimit| matches!(limit.kind, LimitKind::Rates(_));
            let dropped = policy.limits.iter().filter(|limit| !is_simulated(limit));
            left_out
                .extend(dropped.map(|limit| format!("{}/{} {}", policy.namespace, policy.name, limit.name)));
            policy.limits.retain(is_simulated);
            for limit in &mut policy.limits {
                // It is the user's own log.
                limit.public_parts = (0..limit.key.len()).collect();
            }
        };
        let policies = PolicyFile::load_once(file, installation, edit, |warning| warnings.push(warning))?;
        let simulation = Simulation::begin(&policies, begin).map_err(|nacks| {
            let lines = nacks.iter().map(|(name, nack)| format!("{}: {name}: {nack}", file.display()));
            anyhow!(lines.collect::<Vec<_>>().join("\n"))
        })?;
        let policies: Vec<_> = policies.into_iter().map(|(_, policy): NamedPolicy| policy).collect();
        let tallies = |policy: &Arc<PreparedPolicy>| {
            policy.limits.iter().map(|limit| LimitTally::new(policy, limit, begin)).collect()
        };
        Ok(Self {
            name: file.display().to_string(),
            left_out,
            warnings,
            admitted: 0,
            denied: 0,
            limits: policies.iter().map(tallies).collect(),
            policies,
            simulation,
        })
    }

    /// Decides a request at a time that does not go back, and reports whether it is admitted.
    pub(super) async fn decide(&mut self, logged: &LoggedRequest, now: u64) -> bool {
        let LoggedRequest { request, client, status, at: _ } = logged;
        let simulated = self.simulation.decide(now, request, *client, *status).await;
        for outcome in &simulated.limits {
            let describe = || {
                let policy = &self.policies[outcome.policy];
                Simulation::describe_client(policy, outcome.limit, request, *client)
            };
            self.limits[outcome.policy][outcome.limit].add(outcome, now, describe);
        }
        let waits = simulated.limits.iter().any(|limit| limit.decision == LimitDecision::Waits);
        let is_admitted = simulated.is_admitted || waits;
        if is_admitted {
            self.admitted += 1;
        } else {
            self.denied += 1;
        }
        is_admitted
    }
}
