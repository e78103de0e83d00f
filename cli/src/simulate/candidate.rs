//! The policies of one file, which decide the requests of the past.

use std::sync::Arc;

use anyhow::{Result, anyhow};
use sluice_config::policy::{CompiledLimit, LimitKind};
use sluice_config::{CompiledPolicy, PreparedPolicy};
use sluice_crds::Installation;
use sluice_crds::manifest::Source;
use sluice_engine::simulation::{LimitDecision, Simulation};

use super::log::LoggedRequest;
use super::tally::LimitTally;
use crate::run::policy_file::{NamedPolicy, load_policies};

/// The policies of one file, with their counters.
pub(super) struct Candidate {
    /// The file.
    pub(super) source: Source,
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

/// A decision about a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Effect {
    pub(super) is_admitted: bool,
    /// Whether a limit denies the request, or would if it did not only mark or observe.
    pub(super) is_denied: bool,
}

impl Candidate {
    /// Loads the policies of a file, with counters that are empty at a time. Names so many of the clients that
    /// need most.
    pub(super) fn load(
        source: &Source,
        installation: &Installation,
        begin: u64,
        most_needing: usize,
    ) -> Result<Self> {
        let (mut left_out, mut warnings) = (Vec::new(), Vec::new());
        let edit = |policy: &mut CompiledPolicy| {
            let is_simulated = |limit: &CompiledLimit| matches!(limit.kind, LimitKind::Rates(_));
            let dropped = policy.limits.iter().filter(|limit| !is_simulated(limit));
            left_out
                .extend(dropped.map(|limit| format!("{}/{} {}", policy.namespace, policy.name, limit.name)));
            policy.limits.retain(is_simulated);
            for limit in &mut policy.limits {
                // It is the user's own log.
                limit.key.iter_mut().for_each(|part| part.public = Some(true));
            }
        };
        let (name, sources) = (&source.name, std::slice::from_ref(source));
        let policies = load_policies(sources, installation, None, edit, |warning| warnings.push(warning))?;
        let simulation = Simulation::begin(&policies, begin).map_err(|nacks| {
            let lines = nacks.iter().map(|(policy, nack)| format!("{name}: {policy}: {nack}"));
            anyhow!(lines.collect::<Vec<_>>().join("\n"))
        })?;
        let policies: Vec<_> = policies.into_iter().map(|(_, policy): NamedPolicy| policy).collect();
        let tallies = |policy: &Arc<PreparedPolicy>| {
            policy.limits.iter().map(|limit| LimitTally::new(policy, limit, begin, most_needing)).collect()
        };
        Ok(Self {
            source: source.clone(),
            left_out,
            warnings,
            admitted: 0,
            denied: 0,
            limits: policies.iter().map(tallies).collect(),
            policies,
            simulation,
        })
    }

    /// Decides a request at a time that does not go back.
    pub(super) async fn decide(&mut self, logged: &LoggedRequest, now: u64) -> Effect {
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
        let is_passed = simulated.limits.iter().any(|limit| limit.decision == LimitDecision::Passed);
        Effect { is_admitted, is_denied: !is_admitted || is_passed }
    }
}
