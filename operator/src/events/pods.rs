//! The events of pods that get no sidecar. A pod that is being created has no identity yet, so its workload has them.

use k8s_openapi::api::core::v1::ObjectReference;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};
use kube::runtime::events::{Event, EventType};

use crate::cluster::pods::pod::Pod;

use super::{Regarding, Reported, note};

/// Reason of the event that a pod gets no sidecar.
pub const NOT_INJECTED: &str = "NotInjected";
/// Reason of the event that the application does not answer its sidecar.
pub const APPLICATION_UNREACHABLE: &str = "ApplicationUnreachable";
/// Reason of the event that something about a pod does not do what it seems to: an annotation, or its DNS.
pub const SIDECAR_WARNING: &str = "SidecarWarning";

/// Returns the event about a new pod, unless it has no controller: whoever creates a pod reads the warnings of the admission.
#[must_use]
pub fn event(pod: &ObjectMeta, namespace: &str, reason: &str, problem: &str) -> Option<Reported> {
    let owner = pod.owner_references.iter().flatten().find(|owner| owner.controller == Some(true))?;
    // Nothing has validated the pod yet.
    let is_name = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '.');
    if owner.name.is_empty() || owner.name.starts_with('.') || !owner.name.chars().all(is_name) {
        return None;
    }
    let object = reference(owner, namespace);
    let regarding = match (owner.kind.as_str(), owner.api_version.as_str()) {
        ("ReplicaSet", "apps/v1") => Regarding::ControllerOf(object),
        _ => Regarding::Object(object),
    };
    let event = Event {
        type_: EventType::Warning,
        reason: reason.to_owned(),
        note: Some(note(problem.to_owned())),
        action: "Inject".to_owned(),
        secondary: None,
    };
    Some(Reported { regarding, event })
}

/// Returns the event that the application of a pod does not answer its sidecar.
#[must_use]
pub fn unreachable(pod: &Pod, problem: &str) -> Reported {
    let object = ObjectReference {
        api_version: Some("v1".to_owned()),
        kind: Some("Pod".to_owned()),
        name: Some(pod.name.clone()),
        namespace: Some(pod.namespace.clone()),
        uid: Some(pod.uid.clone()),
        ..ObjectReference::default()
    };
    let event = Event {
        type_: EventType::Warning,
        reason: APPLICATION_UNREACHABLE.to_owned(),
        note: Some(note(sentence(problem))),
        action: "Forward".to_owned(),
        secondary: None,
    };
    Reported { regarding: Regarding::Object(object), event }
}

/// Returns a text that begins with a capital.
fn sentence(text: &str) -> String {
    let mut rest = text.chars();
    rest.next().into_iter().flat_map(char::to_uppercase).chain(rest).collect()
}

/// Returns a reference to the owner of an object in a namespace.
pub(super) fn reference(owner: &OwnerReference, namespace: &str) -> ObjectReference {
    ObjectReference {
        api_version: Some(owner.api_version.clone()),
        kind: Some(owner.kind.clone()),
        name: Some(owner.name.clone()),
        namespace: Some(namespace.to_owned()),
        uid: Some(owner.uid.clone()),
        ..ObjectReference::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pod(kind: &str, api_version: &str, controller: Option<bool>) -> ObjectMeta {
        let owner = OwnerReference {
            api_version: api_version.into(),
            kind: kind.into(),
            name: "web-5d".into(),
            uid: "7".into(),
            controller,
            block_owner_deletion: None,
        };
        ObjectMeta { owner_references: Some(vec![owner]), ..ObjectMeta::default() }
    }

    #[test]
    fn the_workload_of_a_pod_has_the_event() {
        let regarding =
            |pod: &ObjectMeta| event(pod, "shop", NOT_INJECTED, "why").map(|event| event.regarding);
        let replica_set = regarding(&pod("ReplicaSet", "apps/v1", Some(true))).unwrap();
        assert!(
            matches!(&replica_set, Regarding::ControllerOf(object) if object.name.as_deref() == Some("web-5d"))
        );
        for (kind, api_version) in
            [("StatefulSet", "apps/v1"), ("Job", "batch/v1"), ("ReplicaSet", "other.example/v1")]
        {
            let found = regarding(&pod(kind, api_version, Some(true))).unwrap();
            assert!(
                matches!(found, Regarding::Object(object) if object.namespace.as_deref() == Some("shop"))
            );
        }
        assert_eq!(regarding(&ObjectMeta::default()), None);
        for name in ["", "..", "../../secrets/a", "a?watch=true", "a%2fb"] {
            let mut hostile = pod("ReplicaSet", "apps/v1", Some(true));
            hostile.owner_references.as_mut().unwrap()[0].name = name.into();
            assert_eq!(regarding(&hostile), None, "{name}");
        }
        assert_eq!(regarding(&pod("StatefulSet", "apps/v1", None)), None);
    }
}
