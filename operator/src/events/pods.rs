//! The events of pods that get no sidecar, or whose settings do not do what they seem to. Their workloads have them, because all
//! pods of a workload are alike. The pods are those that the operator reads itself: whoever reaches the webhook can write anything.

use std::sync::Arc;

use k8s_openapi::api::core::v1::ObjectReference;

use crate::cluster::pods::pod::{Controller, Pod, PodFacts};
use crate::events::{Regarding, ReportedEvent, object, warning};
use crate::injection::decide::Skip;

/// Reason of the event that a pod gets no sidecar.
pub const NOT_INJECTED: &str = "NotInjected";
/// Reason of the event that the application does not answer its sidecar.
pub const APPLICATION_UNREACHABLE: &str = "ApplicationUnreachable";
/// Reason of the event that something about a pod does not do what it seems to: an annotation, or its DNS.
pub const SIDECAR_WARNING: &str = "SidecarWarning";

/// A running pod that applies no limits, and to which a Service sends requests as well as to counted pods.
#[derive(Debug, Clone)]
pub struct UnlimitedPod {
    /// Metadata of the pod.
    pub pod: Arc<Pod>,
    /// The reason why it applies no limits.
    pub reason: Unlimited,
    /// The Services, such as `Service web`.
    pub services: Vec<String>,
}

/// The reason why a pod applies no limits.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Unlimited {
    /// The pod is labelled to get no sidecar.
    OptedOut,
    /// The pod uses the host's network.
    HostNetwork,
    /// The pod has no sidecar, but can get one.
    NoSidecar,
    /// The pod has no sidecar and cannot get one.
    Uncapturable(Skip),
}

/// Returns the events about a pod of a policy: why it has no sidecar, or what about it has no effect.
pub fn of_pod(pod: &Pod, facts: &PodFacts) -> impl Iterator<Item = ReportedEvent> {
    let skipped = match &facts.captured {
        Err(skip) if !facts.injected && !skip.is_wanted() => {
            Some((NOT_INJECTED, format!("the pod gets no sidecar: {skip}")))
        }
        Ok(_) | Err(_) => None,
    };
    let warnings = facts.warnings.iter().map(|warning| (SIDECAR_WARNING, warning.clone()));
    skipped.into_iter().chain(warnings).filter_map(|(reason, problem)| event(pod, reason, problem))
}

/// Returns the event about a pod without limits behind the Service of a policy's pods, if it was not meant to have none.
pub fn of_unlimited(UnlimitedPod { pod, reason, .. }: &UnlimitedPod) -> Option<ReportedEvent> {
    let skip = match reason {
        Unlimited::HostNetwork => &Skip::HostNetwork,
        Unlimited::Uncapturable(skip) if !skip.is_wanted() => skip,
        // Nobody knows why it has none.
        Unlimited::Uncapturable(_) | Unlimited::OptedOut | Unlimited::NoSidecar => return None,
    };
    event(pod, NOT_INJECTED, format!("the pod gets no sidecar: {skip}"))
}

/// Returns an event about the workload of a pod, or about the pod if it has none.
fn event(pod: &Pod, reason: &str, problem: String) -> Option<ReportedEvent> {
    let regarding = match &pod.controller {
        None => Regarding::Object(pod_reference(pod)),
        Some(controller) => {
            // The API server does not check the owner of a pod.
            let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
            let Controller { api_version, kind, name, uid } = controller;
            if name.is_empty() || name.starts_with('.') || !name.chars().all(is_name) {
                return None;
            }
            let object = object(api_version, kind, Some(&pod.namespace), name, Some(uid));
            match (kind.as_str(), api_version.as_str()) {
                ("ReplicaSet", "apps/v1") => Regarding::ControllerOf(object),
                _ => Regarding::Object(object),
            }
        }
    };
    let event = warning(reason, problem, "Inject");
    Some(ReportedEvent { regarding, event })
}

fn pod_reference(pod: &Pod) -> ObjectReference {
    object("v1", "Pod", Some(&pod.namespace), &pod.name, Some(&pod.uid))
}

/// Returns the event that the application of a pod does not answer its sidecar.
pub fn unreachable(pod: &Pod, problem: &str) -> ReportedEvent {
    let event = warning(APPLICATION_UNREACHABLE, sentence(problem), "Forward");
    ReportedEvent { regarding: Regarding::Object(pod_reference(pod)), event }
}

/// Returns a text that begins with a capital.
fn sentence(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().into_iter().flat_map(char::to_uppercase).chain(rest).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(kind: &str, api_version: &str, name: &str) -> Pod {
        Pod {
            uid: "1".into(),
            namespace: "shop".into(),
            name: "web-5d-x".into(),
            labels: Arc::default(),
            ends: None,
            created: None,
            owner: None,
            controller: Some(Controller {
                api_version: api_version.into(),
                kind: kind.into(),
                name: name.into(),
                uid: "7".into(),
            }),
        }
    }

    fn regarding(pod: &Pod) -> Option<Regarding> {
        event(pod, NOT_INJECTED, "why".into()).map(|event| event.regarding)
    }

    #[test]
    fn the_workload_of_a_pod_has_the_event() {
        let replica_set = regarding(&pod("ReplicaSet", "apps/v1", "web-5d")).unwrap();
        assert!(
            matches!(&replica_set, Regarding::ControllerOf(object) if object.name.as_deref() == Some("web-5d"))
        );
        for (kind, api_version) in
            [("StatefulSet", "apps/v1"), ("Job", "batch/v1"), ("ReplicaSet", "other.example/v1")]
        {
            let found = regarding(&pod(kind, api_version, "web-5d")).unwrap();
            assert!(
                matches!(found, Regarding::Object(object) if object.namespace.as_deref() == Some("shop"))
            );
        }
        for name in ["", "..", "../../secrets/a", "a?watch=true", "a%2fb"] {
            assert_eq!(regarding(&pod("ReplicaSet", "apps/v1", name)), None, "{name}");
        }
        let alone = Pod { controller: None, ..pod("", "", "") };
        assert!(
            matches!(regarding(&alone), Some(Regarding::Object(object)) if object.name.as_deref() == Some("web-5d-x"))
        );
    }
}
