//! Pods that lead traffic past the sidecars: by a port of their node, or because they apply no limits although
//! they are behind the same Service as the selected pods.

use serde_json::{Value, json};
use sluice_crds::INJECT_LABEL;

use super::bypass::{Bypass, Kind};
use crate::cluster::pods::pod::Pod;
use crate::events::pods::{Unlimited, UnlimitedPod};
use crate::reconcile::facts::CountedPod;
use crate::reconcile::label_sets::unique_by;
use crate::reconcile::status::mend;
use crate::reconcile::status::observed::Observed;

/// Returns how ports of the node bypass the sidecar of a pod.
pub(super) fn host_ports(namespace: &str, pod: &CountedPod) -> Vec<Bypass> {
    let captured = pod.facts.captured.as_deref().unwrap_or_default();
    let exposed = pod.facts.host_ports.iter();
    let bypassed = exposed.filter(|host| captured.iter().any(|port| port.application == host.port));
    let texts = bypassed.map(|host| {
        let port = json!({"containerPort": host.port, "hostPort": null});
        let template = json!({"spec": {"containers": [{"name": host.container, "ports": [port]}]}});
        let mend = match mend::patch_template(namespace, pod.pod.owner.as_deref(), &template) {
            Some(command) => format!("Run {command}"),
            None => "Recreate it without the hostPort".into(),
        };
        let workload = workload(&pod.pod);
        format!("Port {} of {workload} is also a hostPort, which bypasses the sidecars. {mend}.", host.port)
    });
    texts.map(|text| Bypass { kind: Kind::Pod, text }).collect()
}

/// Returns which pods apply no limits although they are behind the same Services as the selected pods.
pub(super) fn unlimited(observed: &Observed<'_>) -> Vec<Bypass> {
    let mut found = Vec::new();
    let kinds = unique_by(&observed.facts.unlimited, |pod| {
        (workload(&pod.pod), std::mem::discriminant(&pod.reason), &pod.services)
    });
    for pod in kinds {
        let (reason, mend) = reason_and_mend(observed, pod);
        found.extend(pod.services.iter().map(|service| Bypass {
            kind: Kind::Pod,
            text: format!("{service} also sends requests to {}, which {reason}. {mend}.", workload(&pod.pod)),
        }));
    }
    found
}

fn reason_and_mend(observed: &Observed<'_>, pod: &UnlimitedPod) -> (String, String) {
    let namespace = &observed.key.namespace;
    let patch = |template: &Value| {
        let command = mend::patch_template(namespace, pod.pod.owner.as_deref(), template);
        command.map(|command| format!("Run {command}"))
    };
    match &pod.reason {
        Unlimited::OptedOut => {
            let label = if observed.facts.injection.is_labelled { Value::Null } else { json!("true") };
            let mend = patch(&json!({"metadata": {"labels": {INJECT_LABEL: label}}}));
            let by_hand = || format!("Recreate it without the label {INJECT_LABEL}");
            let reason = format!("applies no limits because of its label {INJECT_LABEL}=false");
            (reason, mend.unwrap_or_else(by_hand))
        }
        Unlimited::HostNetwork => {
            let mend = patch(&json!({"spec": {"hostNetwork": false}}));
            let by_hand = || "Recreate it without hostNetwork".to_owned();
            let reason = "applies no limits because it uses the network of its host".to_owned();
            (reason, mend.unwrap_or_else(by_hand))
        }
        Unlimited::NoSidecar => {
            let mend = mend::add_sidecars(observed, &[&pod.pod]);
            ("has no sidecar".into(), format!("To add it, {mend}"))
        }
        Unlimited::Uncapturable(error) => {
            ("cannot get a sidecar".into(), format!("The reason: {error}. Then recreate the pod"))
        }
    }
}

/// Returns the workload that created a pod, or the pod itself.
fn workload(pod: &Pod) -> String {
    pod.owner.clone().unwrap_or_else(|| format!("pod/{}", pod.name))
}
