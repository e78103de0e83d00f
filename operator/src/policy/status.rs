//! What everything known about a policy means. Pure. A condition is True when pods have confirmed it, not when
//! something was sent; a message says what to do.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use sluice_config::message::StoreReport;
use sluice_crds::conditions::{reasons, types};
use sluice_crds::rate_limit_policy::PodCounts;
use sluice_crds::{
    INJECT_LABEL, INJECTION_LABEL, PORTS_ANNOTATION, RateLimitPolicyStatus, Violation, compile::summary,
};

use crate::admission::capture::CapturedPort;
use crate::cluster::{Service, ServicePort};
use crate::distribution::Confirmation;
use crate::policy::dereference::{Facts, PodView};
use crate::policy::publish::Outcome;
use crate::policy::queue::PolicyKey;

/// A new leader leaves `Programmed` as it is for this long, unless all pods have reported.
pub const GRACE: Duration = Duration::from_secs(60);
/// A policy just published is `Pending` for this long; later its pods are unconfirmed.
pub const PENDING: Duration = Duration::from_secs(10);
/// Without pods, how often workloads are looked for.
const LOOK_AGAIN: Duration = Duration::from_secs(30);
/// How many pods, Services or violations a message names.
const NAMED: usize = 3;
/// The longest message.
const MAX_MESSAGE: usize = 2_000;

/// What is known about a policy.
pub struct Known<'a> {
    /// Its name.
    pub key: &'a PolicyKey,
    /// Its generation.
    pub generation: i64,
    /// What became of it.
    pub outcome: &'a Outcome,
    /// What it is about.
    pub facts: &'a Facts,
    /// For how long this replica has led.
    pub leads_for: Duration,
    /// The status that it has.
    pub previous: Option<&'a RateLimitPolicyStatus>,
}

/// The status of one condition before it becomes one.
struct Finding {
    status: &'static str,
    reason: &'static str,
    message: String,
}

impl Finding {
    fn new(status: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { status, reason, message: message.into() }
    }
}

/// The status, and after how long to look again if nothing changes.
#[must_use]
pub fn status(known: &Known<'_>, now: Timestamp) -> (RateLimitPolicyStatus, Option<Duration>) {
    let mut again = None;
    let accepted = accepted(known.outcome);
    let mut kept = false;
    let programmed = programmed(known, &mut again, &mut kept);
    let captured = captured(known);
    let store = store_healthy(&known.facts.pods);
    let ready = ready(
        &store,
        [(types::ACCEPTED, &accepted), (types::PROGRAMMED, &programmed), (types::CAPTURED, &captured)],
    );
    let conditions = [
        (types::ACCEPTED, accepted),
        (types::PROGRAMMED, programmed),
        (types::CAPTURED, captured),
        (types::STORE_HEALTHY, store),
        (types::READY, ready),
    ];
    let conditions =
        conditions.into_iter().map(|(kind, finding)| condition(known, kind, finding, now)).collect();
    let pods = match known.outcome {
        Outcome::Published { .. } if !kept => Some(counts(&known.facts.pods)),
        _ => known.previous.and_then(|previous| previous.pods.clone()),
    };
    let limits = match known.outcome {
        Outcome::Invalid(_) => known.previous.and_then(|previous| previous.limits.clone()),
        Outcome::Published { compiled, .. } => Some(summary(compiled)),
    };
    (RateLimitPolicyStatus { observed_generation: Some(known.generation), conditions, pods, limits }, again)
}

fn accepted(outcome: &Outcome) -> Finding {
    match outcome {
        Outcome::Published { .. } => Finding::new("True", reasons::ACCEPTED, "The policy is valid."),
        Outcome::Invalid(violations) => {
            let text = list(violations.iter().map(Violation::to_string));
            Finding::new(
                "False",
                reasons::INVALID,
                format!("{text}. What sidecars enforced before, if anything, stays in force."),
            )
        }
    }
}

/// Says in `kept` whether it left the condition as it was.
fn programmed(known: &Known<'_>, again: &mut Option<Duration>, kept: &mut bool) -> Finding {
    let Outcome::Published { since, .. } = known.outcome else {
        return Finding::new("False", reasons::PENDING, "The policy is invalid: see Accepted.");
    };
    let pods = &known.facts.pods;
    if pods.is_empty() {
        *again = Some(LOOK_AGAIN);
        return match &known.facts.scaled_to_zero {
            Some(workload) => Finding::new(
                "True",
                reasons::SCALED_TO_ZERO,
                format!("{workload} has no pods; those to come get the policy."),
            ),
            None => Finding::new(
                "False",
                reasons::NO_PODS,
                format!(
                    "No running pod of the namespace {} has the labels of spec.selector.",
                    known.key.namespace
                ),
            ),
        };
    }
    let missing: Vec<_> = pods.iter().filter(|view| view.confirmation != Confirmation::Applied).collect();
    if missing.is_empty() {
        return Finding::new(
            "True",
            reasons::PROGRAMMED,
            format!("All {} confirmed this policy.", plural(pods.len(), "pod")),
        );
    }
    let same_generation = |condition: &&Condition| {
        condition.type_ == types::PROGRAMMED
            && condition.observed_generation == Some(known.generation)
            && condition.reason != reasons::SCALED_TO_ZERO
    };
    if known.leads_for < GRACE {
        *again = Some(GRACE - known.leads_for);
        let awaited =
            pods.iter().any(|view| view.facts.injected && view.confirmation == Confirmation::NotConnected);
        let before = known.previous.and_then(|previous| previous.conditions.iter().find(same_generation));
        match before {
            Some(before) if awaited && before.status == "True" => {
                *kept = true;
                return Finding::new("True", reasons::PROGRAMMED, before.message.clone());
            }
            // Confirmed by nobody, and not for lack of time: an older operator's pods have not said anything yet.
            None if awaited && known.previous.is_none_or(|previous| previous.conditions.is_empty()) => {
                *again = Some(PENDING);
            }
            None if awaited => {
                return Finding::new(
                    "Unknown",
                    reasons::AWAITING_REPORTS,
                    format!(
                        "The operator has just started: {} not reported yet.",
                        plural_verb(missing.len(), "pod", "has", "have")
                    ),
                );
            }
            _ => {}
        }
    }
    let refusals: Vec<_> = missing
        .iter()
        .filter_map(|view| match &view.confirmation {
            Confirmation::Refused(reason) => Some(format!("{}: {reason}", view.pod.name)),
            _ => None,
        })
        .collect();
    if !refusals.is_empty() {
        return Finding::new(
            "False",
            reasons::REFUSED,
            format!(
                "{} of {} refused the policy and keep what they had: {}. Restart them to get the sidecar of this release.",
                refusals.len(),
                plural(pods.len(), "pod"),
                list(refusals)
            ),
        );
    }
    let bare: Vec<_> = pods.iter().filter(|view| !view.facts.injected).collect();
    if !bare.is_empty() {
        return Finding::new("False", reasons::NOT_INJECTED, not_injected(known, &bare));
    }
    let names = list(missing.iter().map(|view| match view.confirmation {
        Confirmation::NotConnected => format!("{} (its sidecar has no stream)", view.pod.name),
        _ => view.pod.name.clone(),
    }));
    let text = format!(
        "{} of {} have not confirmed this policy: {names}.",
        missing.len(),
        plural(pods.len(), "pod")
    );
    if since.elapsed() < PENDING {
        *again = Some(PENDING - since.elapsed());
        Finding::new("False", reasons::PENDING, text)
    } else {
        Finding::new(
            "False",
            reasons::PODS_UNCONFIRMED,
            format!("{text} Look at the logs of their container sluice-sidecar."),
        )
    }
}

fn not_injected(known: &Known<'_>, bare: &[&PodView]) -> String {
    let namespace = &known.key.namespace;
    let mut commands = BTreeSet::new();
    let asks = |view: &&PodView| view.pod.labels.get(INJECT_LABEL).is_some_and(|value| value == "true");
    let mut text = format!("{} of {} carry no sidecar: ", bare.len(), plural(known.facts.pods.len(), "pod"));
    if !known.facts.namespace_labelled && !bare.iter().all(asks) {
        text.push_str(&format!("kubectl label namespace {namespace} {INJECTION_LABEL}=enabled, then "));
    }
    for view in bare {
        // Without a port to capture a new pod would be as bare as this one.
        if let Err(error) = &view.facts.captured {
            return format!("{}: {error}; then make its pods anew.", view.pod.name);
        }
        commands.insert(match view.pod.owner.as_deref() {
            Some(owner)
                if ["deployment/", "statefulset/", "daemonset/"]
                    .iter()
                    .any(|kind| owner.starts_with(kind)) =>
            {
                format!("kubectl -n {namespace} rollout restart {owner}")
            }
            Some(owner) => format!("let {owner} make its pods anew"),
            None => format!("delete and create anew pod/{}", view.pod.name),
        });
    }
    text.push_str(&list(commands));
    text.push('.');
    text
}

fn captured(known: &Known<'_>) -> Finding {
    let facts = known.facts;
    for view in &facts.pods {
        if let Err(error) = &view.facts.captured {
            return Finding::new("False", reasons::NO_NAMED_PORT, format!("{}: {error}.", view.pod.name));
        }
    }
    let mut bypasses = BTreeSet::new();
    for view in &facts.pods {
        let ports = view.facts.captured.as_deref().unwrap_or_default();
        for port in ports.iter().filter(|port| view.facts.host_ports.contains(&port.application)) {
            bypasses.insert(format!(
                "The hostPort of {} leads to its port {}, past the sidecar: remove it",
                view.pod.name, port.application
            ));
        }
        let leads_here = |service: &&Arc<Service>| {
            !service.selector.is_empty()
                && service.selector.iter().all(|(k, v)| view.pod.labels.get(k) == Some(v))
        };
        for service in facts.services.iter().filter(leads_here) {
            if !view.facts.injected {
                bypasses.insert(format!(
                    "Service {} leads to pods that carry no sidecar: see Programmed",
                    service.name
                ));
                continue;
            }
            bypasses.extend(
                service.ports.iter().filter_map(|port| bypass(service, port, ports, view.facts.chosen)),
            );
        }
    }
    if bypasses.is_empty() {
        Finding::new("True", reasons::ALL_TRAFFIC, "No Service leads past the sidecars.")
    } else {
        Finding::new("False", reasons::BYPASSED_BY_SERVICE, format!("{}.", list(bypasses)))
    }
}

/// How a port of a Service leads past the sidecar of a pod that it selects, if it does.
fn bypass(service: &Service, port: &ServicePort, captured: &[CapturedPort], chosen: bool) -> Option<String> {
    let leads =
        |target: &str| format!("Service {} port {} leads to {target} of the pods", service.name, port.port);
    let target = match &port.target {
        IntOrString::Int(number) => {
            if captured.iter().any(|c| i32::from(c.sidecar) == *number) {
                return None;
            }
            if let Some(past) = captured.iter().find(|c| i32::from(c.application) == *number) {
                let leads = leads(&number.to_string());
                return Some(format!("{leads}, past the sidecars: set its targetPort to {:?}", past.name));
            }
            number.to_string()
        }
        IntOrString::String(name) if captured.iter().any(|c| c.name == *name) => return None,
        IntOrString::String(name) => name.clone(),
    };
    // Metrics, say: whoever has said which ports serve requests has said that this one does not.
    (!chosen).then(|| {
        let leads = leads(&target);
        format!("{leads}, which no sidecar captures: name the ports that serve requests in the pods' annotation {PORTS_ANNOTATION}")
    })
}

fn store_healthy(pods: &[PodView]) -> Finding {
    let voices: Vec<_> =
        pods.iter().filter_map(|view| view.store.as_ref()).filter(|v| **v != StoreReport::Unknown).collect();
    let faults: BTreeSet<&str> = voices
        .iter()
        .filter_map(|voice| match voice {
            StoreReport::Failing { fault } => Some(fault.as_str()),
            _ => None,
        })
        .collect();
    let failing = voices.iter().filter(|voice| matches!(voice, StoreReport::Failing { .. })).count();
    if voices.is_empty() {
        return Finding::new("Unknown", reasons::NO_REPORTS, "No sidecar has said how the store is doing.");
    }
    if failing == 0 {
        return Finding::new(
            "True",
            reasons::HEALTHY,
            format!("The store answers {}.", plural(voices.len(), "sidecar")),
        );
    }
    let faults: Vec<_> = faults.into_iter().collect();
    let text = format!(
        "{failing} of {} cannot use the store ({}): onStoreFailure decides their requests.",
        plural(voices.len(), "sidecar"),
        faults.join(", ")
    );
    let reason = match faults.as_slice() {
        ["unreachable"] if failing == voices.len() => reasons::UNREACHABLE,
        ["refused"] if failing == voices.len() => reasons::STORE_REFUSED,
        _ => reasons::DEGRADED,
    };
    Finding::new("False", reason, text)
}

fn ready(store: &Finding, needed: [(&str, &Finding); 3]) -> Finding {
    match needed.into_iter().find(|(_, finding)| finding.status != "True") {
        None if store.status == "False" => Finding::new(
            "True",
            reasons::READY,
            "Every pod has this policy, and no Service leads past it; but see StoreHealthy.",
        ),
        None => Finding::new(
            "True",
            reasons::READY,
            "Every pod enforces this policy, and no Service leads past it.",
        ),
        Some((kind, finding)) => {
            let status = if finding.status == "Unknown" { "Unknown" } else { "False" };
            Finding::new(status, finding.reason, format!("{kind}: {}", finding.message))
        }
    }
}

fn counts(pods: &[PodView]) -> PodCounts {
    let count = |wanted: &dyn Fn(&&PodView) -> bool| {
        i32::try_from(pods.iter().filter(wanted).count()).unwrap_or(i32::MAX)
    };
    let programmed = count(&|view| view.confirmation == Confirmation::Applied);
    PodCounts {
        selected: count(&|_| true),
        injected: count(&|view| view.facts.injected),
        programmed,
        summary: format!("{programmed}/{}", pods.len()),
    }
}

fn condition(known: &Known<'_>, kind: &str, finding: Finding, now: Timestamp) -> Condition {
    let before = known
        .previous
        .and_then(|previous| previous.conditions.iter().find(|condition| condition.type_ == kind));
    let message = match finding.message.char_indices().nth(MAX_MESSAGE) {
        Some((end, _)) => format!("{}...", &finding.message[..end]),
        None => finding.message,
    };
    Condition {
        last_transition_time: match before {
            Some(before) if before.status == finding.status => before.last_transition_time.clone(),
            // Whole seconds: that is what comes back.
            _ => Time(Timestamp::from_second(now.as_second()).unwrap_or(now)),
        },
        message,
        observed_generation: Some(known.generation),
        reason: finding.reason.into(),
        status: finding.status.into(),
        type_: kind.into(),
    }
}

fn list(items: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let items: Vec<_> = items.into_iter().collect();
    let mut text = items.iter().take(NAMED).map(AsRef::as_ref).collect::<Vec<_>>().join("; ");
    if items.len() > NAMED {
        text.push_str(&format!("; and {} more", items.len() - NAMED));
    }
    text
}

fn plural(n: usize, word: &str) -> String {
    format!("{n} {word}{}", if n == 1 { "" } else { "s" })
}

fn plural_verb(n: usize, word: &str, one: &str, many: &str) -> String {
    format!("{} {}", plural(n, word), if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn past(target: IntOrString, chosen: bool) -> Option<String> {
        let captured = [CapturedPort { name: "http".into(), sidecar: 8790, application: 8080 }];
        let port = ServicePort { name: None, port: 80, target };
        let service =
            Service { name: "web".into(), selector: [("app".into(), "a".into())].into(), ports: vec![] };
        bypass(&service, &port, &captured, chosen)
    }

    #[test]
    fn a_service_passes_by_unless_it_leads_to_a_sidecar_or_somebody_said_that_the_port_serves_no_requests() {
        let name = |name: &str| IntOrString::String(name.into());
        assert_eq!(past(name("http"), false), None);
        assert_eq!(past(IntOrString::Int(8790), false), None);
        for chosen in [false, true] {
            let text = past(IntOrString::Int(8080), chosen).unwrap();
            assert_eq!(
                text,
                "Service web port 80 leads to 8080 of the pods, past the sidecars: set its targetPort to \"http\""
            );
        }
        for other in [name("metrics"), IntOrString::Int(9090)] {
            assert!(past(other.clone(), false).unwrap().contains("in the pods' annotation sluice.dev/ports"));
            assert_eq!(past(other, true), None);
        }
    }
}
