use serde_json::{Value, json};

use super::*;

#[expect(clippy::needless_pass_by_value, reason = "json! makes values")]
fn message(status: Value) -> String {
    let pod = json!({"metadata": {"name": "web-1"}, "status": status});
    pending("shop", &serde_json::from_value(pod).unwrap())
}

#[test]
fn a_pending_pod_says_what_it_waits_for() {
    let scheduled = json!({"type": "PodScheduled", "status": "False", "message": "0/3 nodes are available: 3 Insufficient cpu."});
    assert_eq!(
        message(json!({"conditions": [scheduled]})),
        "Pod web-1 is pending: it is not scheduled: 0/3 nodes are available: 3 Insufficient cpu."
    );
    let waiting = |name: &str, reason: &str| json!({"name": name, "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": {"waiting": {"reason": reason, "message": "Back-off\npulling"}}});
    assert_eq!(
        message(json!({
            "initContainerStatuses": [waiting("sluice-sidecar", "ImagePullBackOff")],
            "containerStatuses": [waiting("app", "PodInitializing")],
        })),
        "Pod web-1 is pending: container sluice-sidecar waits, ImagePullBackOff: Back-off pulling."
    );
    let starting = json!({"name": "sluice-sidecar", "image": "", "imageID": "", "ready": false, "restartCount": 0, "started": false, "state": {"running": {}}});
    let text = message(json!({"initContainerStatuses": [starting]}));
    assert_eq!(text, "Pod web-1 is pending: its sidecar waits for its first policies.");
    let unknown = "Pod web-1 is pending: `kubectl -n shop describe pod web-1` shows its events.";
    assert_eq!(message(json!({"containerStatuses": [waiting("app", "ContainerCreating")]})), unknown);
    assert_eq!(message(json!({})), unknown);
}

#[test]
fn only_a_replica_failure_says_why_a_workload_has_no_pods() {
    let words = "pods \"web-7\" is forbidden: exceeded quota: q.";
    let shown = "pods \"web-7\" is forbidden: exceeded quota: q".to_owned();
    let conditions = |kind: &str, status: &str| {
        vec![serde_json::from_value(json!({"type": kind, "status": status, "message": words})).unwrap()]
    };
    assert_eq!(failure(&conditions("ReplicaFailure", "True")), Some(shown));
    assert_eq!(failure(&conditions("ReplicaFailure", "False")), None);
    assert_eq!(failure(&conditions("Available", "False")), None);
}
