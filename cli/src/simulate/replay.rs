//! A replay of logs against the policies of one file or two.

use std::collections::BTreeSet;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Result, anyhow};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use sluice_config::policy::{CompiledLimit, LimitKind};
use sluice_config::{CompiledPolicy, PreparedPolicy};
use sluice_crds::Installation;
use sluice_crds::manifest::Source;
use sluice_engine::simulation::{LimitDecision, Simulation};

use super::log::LoggedRequest;
use super::log::files::{Incomplete, Requests, Unreadable};
use super::log::format::Hints;
use super::routes::Routes;
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

/// Number of requests between two updates of the progress bar.
const UPDATE_EVERY: u64 = 4_096;

/// Logs, and what does not change from one replay of them to the next.
#[derive(Debug)]
pub(super) struct Replay<'a> {
    pub(super) logs: &'a [PathBuf],
    pub(super) hints: &'a Hints,
    pub(super) installation: &'a Installation,
    /// Number of clients of each limit, and of routes, in the result.
    pub(super) clients: usize,
}

/// Everything that a replay has found.
pub(super) struct Replayed {
    pub(super) requests: u64,
    /// The address of the client of all requests, if there is one alone and no request names others.
    pub(super) only_client: Option<IpAddr>,
    /// Requests that the log has more than five minutes after later ones.
    pub(super) late: u64,
    pub(super) unreadable: Unreadable,
    pub(super) incomplete: Vec<Incomplete>,
    pub(super) begin: u64,
    pub(super) end: u64,
    /// Requests that no candidate, the first, the second, or both denied.
    pub(super) denied: [u64; 4],
    pub(super) routes: Routes,
    pub(super) candidates: Vec<Candidate>,
}

impl Replay<'_> {
    /// Replays the logs against the policies of each file.
    pub(super) async fn run(&self, policies: &[Source]) -> Result<Replayed> {
        let mut requests = Requests::open(self.logs, self.hints.clone())?;
        let begin = requests.begin()?;
        let candidates = policies
            .iter()
            .map(|source| Candidate::load(source, self.installation, begin.unwrap_or(0), self.clients));
        let mut candidates = candidates.collect::<Result<Vec<_>>>()?;
        let progress = progress(requests.bytes);
        let (mut count, mut end, mut late, mut only) = (0u64, begin.unwrap_or(0), 0u64, [0u64; 4]);
        let mut routes = Routes::default();
        let mut clients = BTreeSet::new();
        while let Some(logged) = requests.next()? {
            if clients.len() < 2 {
                clients.insert((logged.client, logged.request.headers().contains_key("x-forwarded-for")));
            }
            // Of those that are too late to be sorted.
            late += u64::from(logged.at < end);
            end = end.max(logged.at);
            let (mut denied, mut counted) = (0, [false; 2]);
            for (n, candidate) in candidates.iter_mut().enumerate() {
                let Effect { is_admitted, is_denied } = candidate.decide(&logged, end).await;
                denied |= usize::from(!is_admitted) << n;
                counted[n] = is_denied;
            }
            only[denied] += 1;
            routes.add(logged.request.method().as_str(), logged.request.uri().path(), counted);
            count += 1;
            if count.is_multiple_of(UPDATE_EVERY) {
                progress.set_position(requests.read());
            }
        }
        progress.finish_and_clear();
        Ok(Replayed {
            requests: count,
            only_client: match (clients.pop_first(), clients.is_empty()) {
                (Some((client, false)), true) => Some(client),
                _ => None,
            },
            late,
            unreadable: requests.unreadable,
            incomplete: requests.incomplete,
            begin: begin.unwrap_or(0),
            end,
            denied: only,
            routes,
            candidates,
        })
    }
}

impl Replayed {
    /// Returns the limits of all candidates.
    pub(super) fn limits(&self) -> impl Iterator<Item = &LimitTally> {
        self.candidates.iter().flat_map(|candidate| candidate.limits.iter().flatten())
    }
}

/// Shows progress on a terminal.
fn progress(bytes: u64) -> ProgressBar {
    if bytes == 0 {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::with_draw_target(Some(bytes), ProgressDrawTarget::stderr());
    let template = "{wide_bar} {bytes}/{total_bytes}, {eta} left";
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar.enable_steady_tick(Duration::from_millis(200));
    bar
}
