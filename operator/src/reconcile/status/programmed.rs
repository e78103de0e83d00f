//! The condition Programmed: every counted pod has confirmed this edit of the policy.

use std::time::Duration;

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use sluice_crds::conditions::{reasons, types};
use sluice_crds::{INJECT_LABEL, SERVICE_LABEL};

use crate::cluster::pods::pod::Pod;
use crate::conditions::{Finding, plural};
use crate::distribution::session::Confirmation;
use crate::injection::decide::{Skip, is_opted_out};
use crate::leadership::LEADER_GRACE;
use crate::names::ServiceAccount;
use crate::reconcile::facts::{CountedPod, NamespaceInjection, Observed, Outcome, PENDING, SelectedPods};
use crate::reconcile::status::text::{add_sidecars, list, part_of};

#[cfg(test)]
mod tests;

/// Interval between searches for workloads while a policy has no pods.
const SEARCH_EVERY: Duration = Duration::from_secs(30);
/// Time by which a pod must be younger than the label of its namespace to count as one that was missed, in seconds.
const CLEARLY_LATER: i64 = 5;

/// The condition, and how it affects the rest of the status.
pub(super) struct Programmed {
    pub(super) finding: Finding,
    /// Whether a new leader keeps the previous condition. The previous pod counts are kept with it.
    pub(super) is_kept: bool,
    /// Delay after which the condition changes even if nothing else does.
    pub(super) check_again_after: Option<Duration>,
}

impl Programmed {
    fn new(status: &'static str, reason: &'static str, message: impl Into<String>) -> Self {
        Self { finding: Finding::new(status, reason, message), is_kept: false, check_again_after: None }
    }

    fn check_again_after(self, delay: Duration) -> Self {
        Self { check_again_after: Some(delay), ..self }
    }
}

pub(super) fn programmed(observed: &Observed<'_>) -> Programmed {
    let (published_at, is_first, selected, by) = match observed.outcome {
        Outcome::Published { published_at, is_first, selected, enforced_by, .. } => {
            (published_at, *is_first, selected, *enforced_by)
        }
        Outcome::Unread(target) => {
            return Programmed::new("Unknown", reasons::WAITING, format!("{target} is being read."));
        }
        Outcome::Unresolved(_) => {
            let message = "The policy refers to content that cannot be used: see the condition ResolvedRefs.";
            return Programmed::new("False", reasons::PENDING, message);
        }
        Outcome::Invalid(_) => {
            let message = "The policy is invalid: see the condition Accepted.";
            return Programmed::new("False", reasons::INVALID, message);
        }
    };
    let pending_left = PENDING.checked_sub(published_at.elapsed()).filter(|left| !left.is_zero());
    let pending_left = pending_left.filter(|_| !is_first || !was_found_before(observed));
    let pods: Vec<_> = observed.facts.enforcers().collect();
    let pods = pods.as_slice();
    let mut missing = pods.iter().copied().filter(|pod| pod.confirmation != Confirmation::Applied);
    let missing: Vec<_> = missing.by_ref().collect();
    if by.service && observed.facts.service.is_empty() {
        return without_service(observed.service);
    }
    if by.sidecar && observed.facts.pods.is_empty() {
        // Whoever applies a policy together with its workload has no pods yet.
        let is_new = observed.previous_condition(types::PROGRAMMED).is_some() || observed.age < PENDING;
        let pending_left = pending_left.filter(|_| is_new);
        let without = without_pods(observed, selected, pending_left.is_some());
        // What is scaled to zero does not speak for the service.
        if without.finding.status != "True" || missing.is_empty() {
            return without.check_again_after(pending_left.unwrap_or(SEARCH_EVERY));
        }
    }
    if missing.is_empty() {
        let mut message =
            format!("{} applied this policy.", part_of(pods.len(), pods.len(), "pod", "has", "have"));
        if let Some(note) = opted_out(pods) {
            message.push_str(&note);
        }
        return Programmed::new("True", reasons::PROGRAMMED, message);
    }
    let grace_left = LEADER_GRACE.checked_sub(observed.leader_for).filter(|left| !left.is_zero());
    let mut check_again_after = grace_left;
    let nacked = nacked(pods, &missing);
    if let (Some(left), None) = (grace_left, &nacked) {
        match during_grace(observed, missing.len()) {
            DuringGrace::Decided(programmed) => return programmed.check_again_after(left),
            DuringGrace::NeverReported => check_again_after = Some(PENDING),
            DuringGrace::Undecided => {}
        }
    }
    let unconfirmed = nacked.or_else(|| not_injected(observed)).unwrap_or_else(|| {
        if pending_left.is_some() {
            check_again_after = pending_left;
        }
        unconfirmed(pods, &missing, pending_left.is_some())
    });
    let mut unconfirmed = unconfirmed;
    if let Some(absent) = &observed.facts.absent {
        check_again_after = Some(check_again_after.map_or(SEARCH_EVERY, |after| after.min(SEARCH_EVERY)));
        unconfirmed.finding.message.push_str(&format!(" {absent}"));
    }
    if let Some(problem) = &observed.facts.injection.authority {
        unconfirmed.finding.message.push_str(&format!(
            " The ConfigMap sluice-ca of the namespace, by which sidecars trust the operator, cannot be written: {problem}."
        ));
    }
    Programmed { check_again_after, ..unconfirmed }
}

/// Reports whether more than that it is pending was found about a policy that is older than this leader. It is not new again because
/// this leader has published it.
fn was_found_before(observed: &Observed<'_>) -> bool {
    let found = observed.present_condition(types::PROGRAMMED).map(|found| found.reason.as_str());
    let is_open =
        |found: &str| [reasons::PENDING, reasons::WAITING, reasons::AWAITING_REPORTS].contains(&found);
    observed.leader_for < observed.age && found.is_some_and(|found| !is_open(found))
}

/// Returns the note about sidecars that run in pods whose label says that there be none.
fn opted_out(pods: &[&CountedPod]) -> Option<String> {
    let labelled: Vec<_> =
        pods.iter().filter(|pod| !pod.is_service && is_opted_out(&pod.pod.labels)).collect();
    let first = labelled.first()?;
    let (namespace, pod) = (&first.pod.namespace, &first.pod.name);
    let names = list(labelled.iter().map(|pod| pod.pod.name.as_str()));
    Some(format!(
        " The label {INJECT_LABEL}=false of {names} applies to the next pod: a sidecar that runs enforces the policy until its \
         pod is deleted (`kubectl -n {namespace} delete pod {pod}`). Set the label in the template of the workload."
    ))
}

fn without_service(service: Option<&ServiceAccount>) -> Programmed {
    let message = match service {
        Some(service) => format!(
            "No pod of the service runs. See its Deployment: `kubectl -n {} get deployments,pods -l app.kubernetes.io/component=service`",
            service.namespace
        ),
        None => "The installation has no service, which spec.enforcedBy names. Ask the administrators of Sluice: the value \
                 service.enabled of the chart."
            .to_owned(),
    };
    Programmed::new("False", reasons::NO_SERVICE, message)
}

fn without_pods(observed: &Observed<'_>, selected: &SelectedPods, is_pending: bool) -> Programmed {
    let namespace = &observed.key.namespace;
    let reason = if is_pending { reasons::PENDING } else { reasons::NO_PODS };
    if let (None, Some(absent)) = (&observed.facts.idle, &observed.facts.absent) {
        return Programmed::new("False", reason, absent.clone());
    }
    match &observed.facts.idle {
        Some(idle) => Programmed::new(
            "True",
            reasons::SCALED_TO_ZERO,
            format!("{idle}. Its pods will receive this policy when they start."),
        ),
        None if !selected.targets.is_empty() => {
            let targets = list(selected.targets.iter().map(ToString::to_string));
            let message = format!("No running pod in namespace {namespace} belongs to {targets}.");
            Programmed::new("False", reason, message)
        }
        None => Programmed::new(
            "False",
            reason,
            format!(
                "No running pod in namespace {namespace} matches spec.selector. Compare the selector with \
                 the labels that `kubectl -n {namespace} get pods --show-labels` prints."
            ),
        ),
    }
}

/// The decision that a new leader takes while some pods have not confirmed the policy.
enum DuringGrace {
    /// The condition does not depend on the missing confirmations yet.
    Decided(Programmed),
    /// The policy is new: there is no previous status that could be kept.
    NeverReported,
    /// The missing confirmations decide.
    Undecided,
}

/// Decides for a new leader. Its missing confirmations say little while sidecars are still connecting to it.
fn during_grace(observed: &Observed<'_>, missing: usize) -> DuringGrace {
    if observed.awaits_sidecars().is_none() {
        return DuringGrace::Undecided;
    }
    let previous = observed
        .present_condition(types::PROGRAMMED)
        .filter(|condition| condition.reason != reasons::SCALED_TO_ZERO);
    let kept = |status, reason, previous: &Condition| {
        let kept = Programmed::new(status, reason, previous.message.clone());
        DuringGrace::Decided(Programmed { is_kept: true, ..kept })
    };
    match previous {
        Some(previous) if previous.status == "True" => kept("True", reasons::PROGRAMMED, previous),
        Some(previous) if previous.reason == reasons::REFUSED => kept("False", reasons::REFUSED, previous),
        Some(_) => DuringGrace::Undecided,
        None if observed.previous.is_none_or(|previous| previous.conditions.is_empty()) => {
            DuringGrace::NeverReported
        }
        None => {
            let message = format!(
                "The operator has just started and waits for the reports of {}. This takes at most a minute.",
                plural(missing, "pod")
            );
            DuringGrace::Decided(Programmed::new("Unknown", reasons::AWAITING_REPORTS, message))
        }
    }
}

fn nacked(pods: &[&CountedPod], missing: &[&CountedPod]) -> Option<Programmed> {
    let nacks: Vec<_> = missing
        .iter()
        .filter_map(|pod| match &pod.confirmation {
            Confirmation::Nacked(reason) => Some(format!("{}: {reason}", pod.pod.name)),
            _ => None,
        })
        .collect();
    if nacks.is_empty() {
        return None;
    }
    let message = format!(
        "{} rejected this policy: {}. There, the previous version stays active, if there is one. If a sidecar \
         is older than the operator, restart its pod to update it.",
        part_of(nacks.len(), pods.len(), "pod", "has", "have"),
        list(nacks)
    );
    Some(Programmed::new("False", reasons::REFUSED, message))
}

fn not_injected(observed: &Observed<'_>) -> Option<Programmed> {
    let pods = &observed.facts.pods;
    let bare: Vec<_> = pods.iter().filter(|pod| !pod.facts.injected).collect();
    if bare.is_empty() {
        return None;
    }
    // A new pod would be like this one.
    let uncapturable = bare.iter().find_map(|pod| Some((&pod.pod.name, pod.facts.captured.as_ref().err()?)));
    let reason = match uncapturable {
        Some((_, Skip::Removed)) => reasons::SIDECAR_REMOVED,
        Some(_) | None => reasons::NOT_INJECTED,
    };
    let message = match uncapturable {
        Some((pod, error)) => format!("Pod {pod} cannot get a sidecar: {error}. Then recreate the pod."),
        None => {
            let subject = part_of(bare.len(), pods.len(), "pod", "has", "have");
            let pods: Vec<&Pod> = bare.iter().map(|pod| &*pod.pod).collect();
            let mut text = format!("{subject} no sidecar");
            if let Some(pod) = pods.iter().find(|pod| was_missed(&observed.facts.injection, pod)) {
                text.push_str(&format!(
                    ", although pod {} was created while the namespace was labelled and this operator ran: the API server did \
                     not call the webhook",
                    pod.name
                ));
            }
            format!("{text}. To add it, {}.", add_sidecars(observed, &pods))
        }
    };
    Some(Programmed::new("False", reason, message))
}

/// Reports whether a pod should have got a sidecar: it is younger than the label of its namespace and than the operator. A
/// pod that was created in the same seconds proves nothing.
fn was_missed(injection: &NamespaceInjection, pod: &Pod) -> bool {
    let times = injection.labelled_since.zip(injection.operator_since).zip(pod.created);
    injection.is_labelled
        && times.is_some_and(|((labelled, operator), created)| {
            created.as_second() > labelled.max(operator).as_second() + CLEARLY_LATER
        })
}

fn unconfirmed(pods: &[&CountedPod], missing: &[&CountedPod], is_pending: bool) -> Programmed {
    let names = list(missing.iter().map(|pod| match pod.confirmation {
        Confirmation::NotConnected if pod.is_service => {
            format!("{} (it is not connected to the operator)", pod.pod.name)
        }
        Confirmation::NotConnected => {
            format!("{} (its sidecar is not connected to the operator)", pod.pod.name)
        }
        _ => pod.pod.name.clone(),
    }));
    let subject = part_of(missing.len(), pods.len(), "pod", "has", "have");
    let text = format!("{subject} not confirmed this policy: {names}.");
    if is_pending {
        Programmed::new("False", reasons::PENDING, text)
    } else {
        let of_service = missing.iter().find(|pod| pod.is_service);
        let logs = match of_service {
            Some(pod) => format!(
                "Check the logs of the service: `kubectl -n {} logs -l {}={}`.",
                pod.pod.namespace, SERVICE_LABEL.0, SERVICE_LABEL.1
            ),
            None => "Check the logs of the container sluice-sidecar in these pods.".to_owned(),
        };
        let message = format!("{text} {logs}");
        Programmed::new("False", reasons::PODS_UNCONFIRMED, message)
    }
}
