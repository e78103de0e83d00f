//! Applications that their sidecars do not reach. The policy is enforced all the same, so no condition changes by it.

use super::text::list;
use crate::reconcile::facts::CountedPod;

/// Returns the sentence about pods whose applications are not reached, if there are some.
pub(super) fn unreachable(pods: &[CountedPod]) -> Option<String> {
    let silent: Vec<_> = pods.iter().filter(|pod| !pod.unreachable.is_empty()).collect();
    let first = silent.first()?;
    let names = list(silent.iter().map(|pod| pod.pod.name.as_str()));
    Some(format!("But {} In all: {names}.", text(first)))
}

/// Returns what is wrong with a pod whose application is not reached, and what to do.
pub(crate) fn text(pod: &CountedPod) -> String {
    let ports = list(pod.unreachable.iter().map(u16::to_string));
    format!(
        "the application in pod {} has accepted no connection on port {ports} for a minute although requests came, so they \
         got 502. It must listen on 127.0.0.1, an address of the pod, or all addresses; on ::1 only where the pod has an IPv6 \
         address.",
        pod.pod.name
    )
}
