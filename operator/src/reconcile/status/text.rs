//! Texts of messages, and commands that mend what a condition reports. A user can type them as they stand: names of Kubernetes objects
//! contain nothing that a shell or JSON would interpret.

use std::collections::BTreeSet;

use serde_json::{Value, json};
use sluice_crds::{BYPASS_ANNOTATION, IGNORE_BYPASS, INJECT_LABEL, INJECTION_LABEL};

use crate::cluster::pods::pod::Pod;
use crate::conditions::plural;
use crate::reconcile::facts::Observed;

/// Maximum number of pods, Services, commands or violations that a message names.
pub(super) const MAX_NAMED: usize = 3;
/// Maximum number of characters of several sentences, which leaves room for a prefix in a message. A command
/// must not be cut off.
const MAX_SENTENCES: usize = 1_900;

/// Joins the first items and states how many there are besides them.
pub(super) fn list(items: impl IntoIterator<Item = impl AsRef<str>>) -> String {
    let items: Vec<_> = items.into_iter().collect();
    let mut text = items.iter().take(MAX_NAMED).map(AsRef::as_ref).collect::<Vec<_>>().join("; ");
    if items.len() > MAX_NAMED {
        text.push_str(&format!("; and {} more", items.len() - MAX_NAMED));
    }
    text
}

/// Joins as many of the first texts, each of whole sentences, as a message has room for, and states how many
/// there are besides them.
pub(super) fn sentences<'a>(texts: impl ExactSizeIterator<Item = &'a str>) -> String {
    let total = texts.len();
    let mut text = String::new();
    for (shown, next) in texts.enumerate() {
        let length = text.chars().count() + next.chars().count();
        if shown == MAX_NAMED || (shown > 0 && length > MAX_SENTENCES) {
            let rest = total - shown;
            text.push_str(&format!(" There {} {rest} more.", if rest == 1 { "is" } else { "are" }));
            break;
        }
        if shown > 0 {
            text.push(' ');
        }
        text.push_str(next);
    }
    text
}

/// Returns `1 of 1 pod has` or `1 of 2 pods have`, with the verb in the number of `part`.
pub(super) fn part_of(part: usize, whole: usize, noun: &str, singular: &str, plural_verb: &str) -> String {
    let verb = if part == 1 { singular } else { plural_verb };
    format!("{part} of {} {verb}", plural(whole, noun))
}

/// Returns the command that changes an object, such as `service web`, by operations of a JSON patch.
pub(super) fn patch(namespace: &str, object: &str, operations: &Value) -> String {
    format!("`kubectl -n {namespace} patch {object} --type=json -p '{operations}'`")
}

/// Returns the command that changes the pod template of a workload, such as `deployment/web`, or `None` if the
/// workload is of a kind that does not replace its pods.
pub(super) fn patch_template(namespace: &str, workload: Option<&str>, template: &Value) -> Option<String> {
    let workload = workload.filter(|workload| replaces_its_pods(workload))?;
    let patch = json!({"spec": {"template": template}});
    Some(format!("`kubectl -n {namespace} patch {workload} -p '{patch}'`"))
}

/// Returns the command that excludes a Service from the condition Captured.
pub(super) fn ignore_service(namespace: &str, service: &str) -> String {
    format!(
        "`kubectl -n {namespace} annotate --overwrite service {service} {BYPASS_ANNOTATION}={IGNORE_BYPASS}`"
    )
}

/// Returns what to do so that these pods are replaced by pods with a sidecar.
pub(super) fn add_sidecars(observed: &Observed<'_>, pods: &[&Pod]) -> String {
    let namespace = &observed.key.namespace;
    let is_labelled = |pod: &&Pod| pod.labels.get(INJECT_LABEL).is_some_and(|value| value == "true");
    let injection = &observed.facts.injection;
    if injection.is_excluded {
        return format!(
            "remove the namespace {namespace} from `injection.excludedNamespaces` of the chart, or let the policy select other \
             pods: namespaces in this list never get sidecars"
        );
    }
    let mut text = String::new();
    if let Some(problem) = &injection.webhook {
        text.push_str(&format!("first mend what keeps all new pods from having one ({problem}), then "));
    }
    if !injection.is_labelled && !pods.iter().all(is_labelled) {
        text.push_str(&format!(
            "run `kubectl label --overwrite namespace {namespace} {INJECTION_LABEL}=enabled`, then "
        ));
    }
    let commands: BTreeSet<_> = pods
        .iter()
        .map(|pod| match pod.owner.as_deref() {
            Some(owner) if replaces_its_pods(owner) => {
                format!("run `kubectl -n {namespace} rollout restart {owner}`")
            }
            Some(owner) => format!("recreate the pods of {owner}"),
            None => format!("recreate pod/{}", pod.name),
        })
        .collect();
    text.push_str(&list(commands));
    text
}

/// Reports whether a change of a workload's template replaces its pods.
fn replaces_its_pods(workload: &str) -> bool {
    ["deployment/", "statefulset/", "daemonset/"].iter().any(|kind| workload.starts_with(kind))
}
