//! Computes the status of a store from what is known about it. Pure.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sluice_config::message::{StoreFindings, StoreReport};
use sluice_crds::conditions::{reasons, types};
use sluice_crds::policy::ContentKind;
use sluice_crds::store::{Access, PasswordEpoch, SidecarCounts};
use sluice_crds::{RateLimitStoreStatus, Violation};
use sluice_store::redis::admin::{Problem, Role};
use sluice_store::{Eviction, FaultCause, StoreHealth};

use crate::cluster::references::grant;
use crate::conditions::{Finding, find, plural};
use crate::distribution::stores::SidecarReport;
use crate::leadership::LEADER_GRACE;
use crate::names::ObjectKey;
use crate::store::managed::Provisioned;
use crate::store::resolve::{Resolved, SECRET_TYPE, SecretProblem};

#[cfg(test)]
mod tests;

/// Maximum number of violations or pods that a message names.
const MAX_NAMED: usize = 3;

/// Returns the status.
pub fn status(observed: &ObservedStore<'_>, now: Timestamp) -> RateLimitStoreStatus {
    let accepted = accepted(observed);
    let resolved = resolved_refs(observed);
    let provisioned = observed.provisioned.map(provisioned);
    let reachable = reachable(observed);
    let is_reachable = reachable.status == "True";
    let mut conditions = vec![(types::ACCEPTED, accepted), (types::RESOLVED_REFS, resolved)];
    conditions.extend(provisioned.map(|finding| (types::PROVISIONED, finding)));
    conditions.push((types::REACHABLE, reachable));
    conditions.push((types::READY, ready(&conditions)));
    let healthy =
        observed.reports.iter().filter(|report| matches!(report.report, StoreReport::Healthy(_))).count();
    let count = |n: usize| i32::try_from(n).unwrap_or(i32::MAX);
    let mut sidecars = SidecarCounts {
        reporting: count(observed.reports.len()),
        healthy: count(healthy),
        summary: format!("{healthy}/{}", observed.reports.len()),
    };
    if let Some(before) = observed.awaited() {
        if is_reachable && observed.was_reachable() {
            sidecars = before.clone();
        } else {
            // The next status waits for them too.
            sidecars.reporting = before.reporting;
            sidecars.summary = format!("{healthy}/{}", before.reporting);
        }
    }
    RateLimitStoreStatus {
        observed_generation: Some(observed.generation),
        conditions: conditions
            .into_iter()
            .map(|(kind, finding)| finding.condition(kind, observed.generation, observed.before(kind), now))
            .collect(),
        sidecars: Some(sidecars),
        passwords: observed.passwords.clone(),
    }
}

fn accepted(observed: &ObservedStore<'_>) -> Finding {
    match observed.resolved {
        Resolved::Invalid(violations) => {
            let named: Vec<_> = violations.iter().take(MAX_NAMED).map(Violation::to_string).collect();
            let message = format!("{}. Fix the store.", named.join("; "));
            Finding::new("False", reasons::INVALID, message)
        }
        Resolved::NotAllowed => Finding::new(
            "False",
            reasons::NOT_ALLOWED,
            "Namespaces have no stores of their own in this installation. Ask the administrators of Sluice: the chart value \
             `tenantStores.enabled` allows them.",
        ),
        Resolved::Usable(_) | Resolved::Pending | Resolved::Unusable(_) => {
            Finding::new("True", reasons::ACCEPTED, "The store is valid.")
        }
    }
}

fn resolved_refs(observed: &ObservedStore<'_>) -> Finding {
    match observed.resolved {
        Resolved::Usable(_) => {
            Finding::new("True", reasons::RESOLVED_REFS, "Everything that the store refers to can be used.")
        }
        Resolved::Pending => Finding::new("Unknown", reasons::WAITING, "The Secret is being read."),
        Resolved::Invalid(_) | Resolved::NotAllowed => Finding::new(
            "Unknown",
            reasons::WAITING,
            "The Secret is not read while the store is not accepted.",
        ),
        Resolved::Unusable(problem) => secret_problem(problem, observed.operator_namespace),
    }
}

/// Describes why a Secret cannot be used, and what to do.
fn secret_problem(problem: &SecretProblem, operator_namespace: &str) -> Finding {
    let message = match problem {
        SecretProblem::NotFound(ObjectKey { namespace, name }) => format!(
            "The Secret {name} does not exist. Create it: `kubectl -n {namespace} create secret generic {name} \
             --type={SECRET_TYPE} --from-literal=username=USER --from-literal=password=PASSWORD`"
        ),
        SecretProblem::NotPermitted(ObjectKey { namespace, name }) => format!(
            "The operator may not read the Secret {name}. Whoever may grant that in this namespace runs: {}",
            grant(
                namespace,
                &format!("sluice-{name}"),
                ContentKind::Secret,
                [name.as_str()],
                operator_namespace
            )
        ),
        SecretProblem::Type(key, kind) => format!(
            "The Secret {} is of the type {kind:?}, and only Secrets of the type {SECRET_TYPE} are sent to a store. The type \
             of a Secret cannot be changed: delete it and create it again with this type.",
            key.name
        ),
        SecretProblem::Content(error) => format!("The Secret cannot be used: {error}."),
        SecretProblem::Unreadable(key, error) => {
            format!("The Secret {} could not be read, which is tried again: {error}", key.name)
        }
    };
    let status = if problem.reason() == reasons::WAITING { "Unknown" } else { "False" };
    Finding::new(status, problem.reason(), message)
}

fn provisioned(provisioned: &Provisioned) -> Finding {
    let problems = provisioned.problems();
    let text = |(address, problem): &(Option<&str>, &Problem)| {
        let command = match problem.command {
            "" => String::new(),
            command => format!(" at {command}"),
        };
        let cause = advice(problem.cause);
        address.map_or(format!("{cause}{command}"), |address| format!("{address}{command}: {cause}"))
    };
    let named: Vec<_> = problems.iter().take(MAX_NAMED).map(text).collect();
    let more = problems.len().saturating_sub(MAX_NAMED);
    let more = if more > 0 { format!(" And {more} more.") } else { String::new() };
    match &provisioned.result {
        None => Finding::new("Unknown", reasons::WAITING, "The servers are being read."),
        Some(Err(problem)) => Finding::new(
            "False",
            reason(problem.cause),
            format!(
                "The operator cannot administer the store: {} Namespaces keep the users that they have.",
                named.join(" ")
            ),
        ),
        Some(Ok(reports)) if problems.is_empty() => {
            let users = provisioned.users.as_ref().map_or(0, BTreeMap::len);
            let message = format!(
                "{} {} the library and the users of {users} {}.",
                plural(reports.len(), "server"),
                if reports.len() == 1 { "has" } else { "have" },
                if users == 1 { "namespace" } else { "namespaces" },
            );
            Finding::new("True", reasons::PROVISIONED, message)
        }
        Some(Ok(reports)) => Finding::new(
            "False",
            reasons::PARTLY_PROVISIONED,
            format!(
                "{} of {} could not be brought up to date: {}{more}",
                problems.len(),
                plural(reports.len(), "server"),
                named.join(" ")
            ),
        ),
    }
}

fn reachable(observed: &ObservedStore<'_>) -> Finding {
    with_findings(reports(observed), observed)
}

/// All sidecars that use the store can reach it.
fn all_reach(all: usize) -> Finding {
    let who = if all == 1 { "The sidecar".to_owned() } else { format!("All {all} sidecars") };
    let verb = if all == 1 { "uses" } else { "use" };
    Finding::new("True", reasons::REACHABLE, format!("{who} that {verb} the store can reach it."))
}

fn reports(observed: &ObservedStore<'_>) -> Finding {
    let failing: Vec<_> = observed
        .reports
        .iter()
        .filter_map(|SidecarReport { pod, report }| match report {
            StoreReport::Failing { cause, .. } => Some((cause.unwrap_or(FaultCause::Unknown), pod)),
            StoreReport::Healthy(_) | StoreReport::Unknown => None,
        })
        .collect();
    let all = observed.reports.len();
    let own = observed.own.or_else(|| own_health(observed.provisioned?));
    let own_fails = all == 0 && matches!(own, Some((StoreHealth::Failing(_), _)));
    if let Some(before) = observed.awaited()
        && failing.is_empty()
        && !own_fails
    {
        if observed.was_reachable() {
            return all_reach(usize::try_from(before.reporting).unwrap_or(all));
        }
        let message = format!(
            "The operator has just started and waits for the reports of {}. This takes at most a minute.",
            plural(usize::try_from(before.reporting).unwrap_or(all), "sidecar")
        );
        return Finding::new("Unknown", reasons::NO_REPORTS, message);
    }
    if all == 0 {
        return match own {
            Some((StoreHealth::Healthy, _)) => Finding::new(
                "True",
                reasons::REACHABLE,
                "The operator can use the store. No sidecar uses it yet.",
            ),
            Some((StoreHealth::Failing(_), cause)) => {
                let cause = cause.unwrap_or(FaultCause::Unknown);
                let message = format!("The operator cannot use the store: {}", advice(cause));
                Finding::new("False", reason(cause), message)
            }
            Some((StoreHealth::Starting, _)) | None => {
                Finding::new("Unknown", reasons::NO_REPORTS, "No sidecar uses the store yet.")
            }
        };
    }
    let Some(&(first, _)) = failing.iter().min() else {
        return match observed.own {
            Some((StoreHealth::Failing(_), cause)) => {
                let (cause, reached) = (cause.unwrap_or(FaultCause::Unknown), all_reach(all));
                let message =
                    format!("{} But the operator cannot use it: {}", reached.message, advice(cause));
                Finding::new("Unknown", reason(cause), message)
            }
            Some((StoreHealth::Healthy | StoreHealth::Starting, _)) | None => all_reach(all),
        };
    };
    // The cause of most sidecars; of causes that are equally frequent, the first.
    let count = |cause: FaultCause| failing.iter().filter(|(other, _)| *other == cause).count();
    let cause = failing
        .iter()
        .map(|&(cause, _)| cause)
        .fold(first, |best, cause| if count(cause) > count(best) { cause } else { best });
    let mut pods: Vec<_> =
        failing.iter().filter(|(other, _)| *other == cause).map(|(_, pod)| pod.as_str()).collect();
    pods.sort_unstable();
    let named = pods.iter().take(MAX_NAMED).copied().collect::<Vec<_>>().join(", ");
    let more =
        if pods.len() > MAX_NAMED { format!(" and {} more", pods.len() - MAX_NAMED) } else { String::new() };
    let message = format!(
        "{} of {all} sidecars cannot use the store, so onStoreFailure decides their requests: {} Seen by {named}{more}.",
        failing.len(),
        advice(cause)
    );
    let reason = if failing.len() == all { reason(cause) } else { reasons::PARTLY_REACHABLE };
    Finding::new("False", reason, message)
}

/// Returns what the passes of an administrator tell about the health of a store. A replica with a problem serves nobody.
fn own_health(provisioned: &Provisioned) -> Option<(StoreHealth, Option<FaultCause>)> {
    let problem = match provisioned.result.as_ref()? {
        Err(problem) => Some(problem),
        Ok(reports) => {
            let mut masters = reports.iter().filter(|report| report.role == Role::Master);
            masters.find_map(|report| report.problem.as_ref())
        }
    };
    Some(match problem {
        None => (StoreHealth::Healthy, None),
        Some(problem) => (StoreHealth::Failing(problem.cause.fault()), Some(problem.cause)),
    })
}

/// Sums up the other conditions, of which the last is Reachable.
fn ready(all: &[(&str, Finding)]) -> Finding {
    let first = |status: &str| all.iter().find(|(_, finding)| finding.status == status);
    match (first("False").or_else(|| first("Unknown")), all.last()) {
        (Some((kind, finding)), _) => {
            Finding::new(finding.status, finding.reason, format!("{kind}: {}", finding.message))
        }
        (None, Some((_, reachable))) if reachable.reason != reasons::REACHABLE => reachable.clone(),
        (None, reachable) => {
            let message = reachable.map(|(_, reachable)| reachable.message.clone()).unwrap_or_default();
            Finding::new("True", reasons::READY, message)
        }
    }
}

/// Returns the reason of the condition Reachable.
fn reason(cause: FaultCause) -> &'static str {
    match cause {
        FaultCause::NameNotResolved => "NameNotResolved",
        FaultCause::ConnectionRefused => "ConnectionRefused",
        FaultCause::NoRoute => "NoRoute",
        FaultCause::ConnectionLost => "ConnectionLost",
        FaultCause::Loading => "Loading",
        FaultCause::ClusterDown => "ClusterDown",
        FaultCause::AnotherCluster => "AnotherCluster",
        FaultCause::TooManyClients => "TooManyClients",
        FaultCause::Slow => "Slow",
        FaultCause::Busy => "Busy",
        FaultCause::AuthenticationFailed => "AuthenticationFailed",
        FaultCause::NotPermitted => "RightMissing",
        FaultCause::CertificateNotTrusted => "CertificateNotTrusted",
        FaultCause::ClientCertificateRejected => "ClientCertificateRejected",
        FaultCause::TlsFailed => "TlsFailed",
        FaultCause::ReadOnlyReplica => "ReadOnly",
        FaultCause::MemoryFull => "MemoryFull",
        FaultCause::WritesDisabled => "WritesDisabled",
        FaultCause::UnsupportedVersion => "UnsupportedVersion",
        FaultCause::TlsSilent => "TlsSilent",
        FaultCause::SeveralShards => "SeveralShards",
        FaultCause::TagsSpread => "TagsSpread",
        FaultCause::NotACluster => "NotACluster",
        FaultCause::NotASentinel => "NotASentinel",
        FaultCause::NoSuchDatabase => "NoSuchDatabase",
        FaultCause::FunctionMissing => "FunctionMissing",
        FaultCause::InvalidReply => "InvalidReply",
        FaultCause::WrongType => "WrongType",
        FaultCause::Unknown => "Unknown",
    }
}

/// Returns what is wrong and what to do, as one or two sentences that follow a colon.
fn advice(cause: FaultCause) -> String {
    let what = match cause {
        FaultCause::NameNotResolved => "Correct `servers`, or the name's DNS entry.",
        FaultCause::ConnectionRefused => "Start Redis, or correct the port in `servers`.",
        FaultCause::NoRoute => {
            "Correct `servers`, or allow the connection in NetworkPolicies and firewalls between the pods and the store."
        }
        FaultCause::ConnectionLost => "Look at the log of Redis; if it requires TLS, set `tls`.",
        FaultCause::Loading => "It is ready when it has read them.",
        FaultCause::ClusterDown => "Look at `redis-cli cluster info`.",
        FaultCause::AnotherCluster => {
            "Look at `redis-cli cluster nodes` on this server, and at whose address it is now."
        }
        FaultCause::TooManyClients => "Raise its `maxclients`.",
        FaultCause::Slow => "Look at its load and its network, or raise `latencyBudget`.",
        FaultCause::Busy => "Look for the script with `redis-cli script kill`, or restart Redis.",
        FaultCause::AuthenticationFailed => "Correct `username` and `password` in the Secret.",
        FaultCause::NotPermitted => "Give its user the rights that the page about stores lists.",
        FaultCause::CertificateNotTrusted => {
            "Put its authority into `ca.crt` in the Secret, and name it in `servers` as its certificate does."
        }
        FaultCause::ClientCertificateRejected => "Correct `tls.crt` and `tls.key` in the Secret.",
        FaultCause::TlsFailed => "Set `tls` if Redis uses TLS, and remove it otherwise.",
        FaultCause::ReadOnlyReplica => "Name the primary in `servers`, or use Sentinels.",
        FaultCause::MemoryFull => "Raise its `maxmemory`, or look for what fills it.",
        FaultCause::WritesDisabled => "Look at its log and its disk.",
        FaultCause::TlsSilent => "Remove `tls` if Redis does not use TLS, and look at its load otherwise.",
        FaultCause::SeveralShards => "Use `cluster` in `servers`, or set `partitions: 1`.",
        FaultCause::TagsSpread => "Counters cannot be kept behind it otherwise.",
        FaultCause::NotACluster => "Use `standalone` in `servers`.",
        FaultCause::NotASentinel => "Name Sentinels in `servers`, or use `standalone`.",
        FaultCause::NoSuchDatabase => "Correct the database in `servers`.",
        FaultCause::UnsupportedVersion => {
            "Update it, or give its commands their names back. The log of a sidecar has the command."
        }
        FaultCause::FunctionMissing => "The operator loads it within seconds.",
        FaultCause::InvalidReply => {
            "Make sure that `servers` lead to Redis or Valkey and not to something else."
        }
        FaultCause::WrongType => "Give Sluice a `keyPrefix` that nothing else uses.",
        FaultCause::Unknown => "Look at the log of a sidecar.",
    };
    format!("{cause}. {what}")
}

/// Part of its memory from which a server counts as nearly full.
const NEARLY_FULL: f64 = 0.9;

/// Adds warnings to the finding that a store can be reached. The first one gives the reason.
fn with_findings(finding: Finding, observed: &ObservedStore<'_>) -> Finding {
    if finding.status != "True" {
        return finding;
    }
    // A new leader does not know yet what the one before knew.
    let is_unread = observed.provisioned.is_some_and(|provisioned| provisioned.result.is_none());
    if (observed.awaited().is_some() || is_unread)
        && let Some(kept) = previous(observed)
    {
        return kept;
    }
    // No numbers, because a status must not change all the time.
    let mut warnings: Vec<(&str, String)> = Vec::new();
    if reported(observed).any(|found| found.lost_counters) {
        let text = "It has lost counters in the last ten minutes, before they expired: their clients began again with nothing used. \
                    Look for `evicted_keys` in INFO, for FLUSHALL, and for a restart without persistence.";
        warnings.push((reasons::COUNTERS_LOST, text.into()));
    }
    let used = observed.provisioned.and_then(Provisioned::memory_used).filter(|used| *used >= NEARLY_FULL);
    if used.is_some() {
        let text = format!(
            "A server uses more than {:.0} % of its maxmemory: raise it, or look for what fills it. A full server rejects writes, \
             and onStoreFailure decides.",
            NEARLY_FULL * 100.0
        );
        warnings.push((reasons::MEMORY_NEARLY_FULL, text));
    }
    let (eviction, evicting) = eviction(observed);
    if eviction == Eviction::Possible {
        let evicting = evicting
            .map_or(String::new(), |server| format!(" {server} has evicted keys in the last ten minutes."));
        let text = format!(
            "It evicts counters when its memory is full, and their clients begin again with nothing used: set `maxmemory-policy \
             noeviction`.{evicting}"
        );
        warnings.push((reasons::MAY_EVICT, text));
    }
    let reason = warnings.first().map_or(finding.reason, |(reason, _)| *reason);
    let mut message = finding.message;
    for (_, text) in &warnings {
        message = format!("{message} {text}");
    }
    if eviction == Eviction::NotSeen {
        message.push_str(
            " Whether it evicts counters is not seen: INFO does not say it, for which the user needs the optional right `+info`.",
        );
    }
    Finding { reason, message, ..finding }
}

/// Returns the warning that the status has, if it is about this generation of the store.
fn previous(observed: &ObservedStore<'_>) -> Option<Finding> {
    let before = observed.was_reachable_by()?;
    let warnings = [reasons::COUNTERS_LOST, reasons::MEMORY_NEARLY_FULL, reasons::MAY_EVICT];
    let reason = warnings.into_iter().find(|reason| before.reason == *reason)?;
    Some(Finding::new("True", reason, before.message.clone()))
}

/// Returns what sidecars that can use the store have found out.
fn reported<'a>(observed: &ObservedStore<'a>) -> impl Iterator<Item = StoreFindings> + 'a {
    observed.reports.iter().filter_map(|report| match report.report {
        StoreReport::Healthy(found) => Some(found),
        StoreReport::Failing { .. } | StoreReport::Unknown => None,
    })
}

/// Returns whether the store evicts counters, and a server that does so now. What is not known yet counts as `Never`.
fn eviction<'a>(observed: &ObservedStore<'a>) -> (Eviction, Option<&'a str>) {
    let is_shared = matches!(observed.resolved, Resolved::Usable(usable) if usable.kind == Access::Shared);
    if is_shared {
        let seen = reported(observed).map(|found| found.eviction).chain(observed.own_eviction);
        return (seen.max().unwrap_or(Eviction::Never), None);
    }
    // Users of namespaces have no right to INFO. The administrator has.
    let reports = observed.provisioned.and_then(|provisioned| provisioned.result.as_ref()?.as_ref().ok());
    let reports = reports.into_iter().flatten();
    let evicting = reports.clone().find(|report| report.has_evicted).map(|report| report.address.as_str());
    let possible = reports.filter(|report| report.eviction == Eviction::Possible);
    let eviction =
        if possible.count() > 0 || evicting.is_some() { Eviction::Possible } else { Eviction::Never };
    (eviction, evicting)
}

/// Everything that the status of a store is computed from.
pub struct ObservedStore<'a> {
    /// Generation of the store.
    pub generation: i64,
    /// The store, as far as it can be used.
    pub resolved: &'a Resolved,
    /// Namespace and service account of the operator, to which rights are granted.
    pub operator_namespace: &'a str,
    /// The reports of the sidecars that use the store.
    pub reports: &'a [SidecarReport],
    /// Health that the operator sees itself, and the cause of a fault. Only for stores that it connects to.
    pub own: Option<(StoreHealth, Option<FaultCause>)>,
    /// Whether the store evicts counters, as the operator sees it itself. Only for stores that it connects to.
    pub own_eviction: Option<Eviction>,
    /// Work of the operator at the servers. Only for managed stores.
    pub provisioned: Option<&'a Provisioned>,
    /// Passwords of the users. Only for managed stores.
    pub passwords: Option<PasswordEpoch>,
    /// Status that the store has.
    pub previous: Option<&'a RateLimitStoreStatus>,
    /// Time for which this operator has been the leader.
    pub leader_for: Duration,
}

impl ObservedStore<'_> {
    /// Returns the counts before this operator became the leader, while sidecars are still connecting to it.
    fn awaited(&self) -> Option<&SidecarCounts> {
        let before = self.previous?.sidecars.as_ref()?;
        let is_fewer = usize::try_from(before.reporting).is_ok_and(|before| self.reports.len() < before);
        (self.leader_for < LEADER_GRACE && is_fewer).then_some(before)
    }

    /// Returns a condition of the previous status.
    fn before(&self, kind: &str) -> Option<&'_ Condition> {
        find(&self.previous?.conditions, kind)
    }

    /// Returns whether sidecars could reach this generation of the store before.
    fn was_reachable_by(&self) -> Option<&'_ Condition> {
        self.before(types::REACHABLE).filter(|before| before.observed_generation == Some(self.generation))
    }

    /// Reports whether all sidecars could.
    fn was_reachable(&self) -> bool {
        self.was_reachable_by().is_some_and(|before| before.status == "True")
    }
}
