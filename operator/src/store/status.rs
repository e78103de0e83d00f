//! Computes the status of a store from what is known about it. Pure.

use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use sluice_config::message::StoreReport;
use sluice_crds::conditions::{reasons, types};
use sluice_crds::policy::ContentKind;
use sluice_crds::store::SidecarCounts;
use sluice_crds::{RateLimitStoreStatus, Violation};
use sluice_store::redis::admin::{Problem, Role};
use sluice_store::{FaultCause, StoreHealth};

use crate::cluster::references::grant;
use crate::distribution::stores::SidecarReport;
use crate::object_key::ObjectKey;
use crate::store::provisioner::Provisioned;
use crate::store::resolve::{Resolved, SECRET_TYPE, SecretProblem};

mod findings;
mod observed;
#[cfg(test)]
mod tests;

use findings::with_findings;
use observed::Finding;
pub use observed::Observed;

/// Maximum number of violations or pods that a message names.
const MAX_NAMED: usize = 3;

/// Returns the status.
#[must_use]
pub fn status(observed: &Observed<'_>, now: Timestamp) -> RateLimitStoreStatus {
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
            .map(|(kind, finding)| condition(observed, kind, finding, now))
            .collect(),
        sidecars: Some(sidecars),
        passwords: observed.passwords.clone(),
    }
}

/// Returns the condition for a finding. The transition time stays the same while the condition's status does.
fn condition(observed: &Observed<'_>, kind: &str, finding: Finding, now: Timestamp) -> Condition {
    let before = observed.previous.into_iter().flat_map(|previous| &previous.conditions);
    let before = before.into_iter().find(|condition| condition.type_ == kind);
    Condition {
        last_transition_time: match before {
            Some(before) if before.status == finding.status => before.last_transition_time.clone(),
            // Whole seconds, because the API server stores no fractions.
            _ => Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
        },
        message: finding.message,
        observed_generation: Some(observed.generation),
        reason: finding.reason.into(),
        status: finding.status.into(),
        type_: kind.into(),
    }
}

fn accepted(observed: &Observed<'_>) -> Finding {
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

fn resolved_refs(observed: &Observed<'_>) -> Finding {
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
                counted(reports.len(), "server"),
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
                counted(reports.len(), "server"),
                named.join(" ")
            ),
        ),
    }
}

fn counted(n: usize, noun: &str) -> String {
    format!("{n} {noun}{}", if n == 1 { "" } else { "s" })
}

fn reachable(observed: &Observed<'_>) -> Finding {
    with_findings(reports(observed), observed)
}

/// All sidecars that use the store can reach it.
fn all_reach(all: usize) -> Finding {
    let who = if all == 1 { "The sidecar".to_owned() } else { format!("All {all} sidecars") };
    let verb = if all == 1 { "uses" } else { "use" };
    Finding::new("True", reasons::REACHABLE, format!("{who} that {verb} the store can reach it."))
}

fn reports(observed: &Observed<'_>) -> Finding {
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
            counted(usize::try_from(before.reporting).unwrap_or(all), "sidecar")
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
