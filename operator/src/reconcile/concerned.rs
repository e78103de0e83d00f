//! Finds the policies that a change of a pod concerns: those that select it, before or after the change, and those whose pods
//! are behind the same Service, if the pod may have no sidecar.

use std::collections::BTreeSet;

use crate::cluster::pods::pod::Pod;
use crate::object_key::PolicyKey;
use crate::reconcile::context::Context;

/// Returns the policies that a change of a pod concerns. The table of pods must have the change already.
#[must_use]
pub fn concerned(context: &Context, before: Option<&Pod>, after: Option<&Pod>) -> BTreeSet<PolicyKey> {
    let Some(pod) = after.or(before) else { return BTreeSet::new() };
    if context.service.as_ref().is_some_and(|service| service.has_pod(&pod.namespace, &pod.labels)) {
        return context.hub.enforced_by_service().into_iter().collect();
    }
    let namespace = pod.namespace.as_str();
    if before == after && context.endpoint_slices.in_namespace(namespace).is_empty() {
        // Only its status has changed. Of that, only its address matters, if an EndpointSlice could list it.
        return BTreeSet::new();
    }
    let labels: Vec<_> = before.into_iter().chain(after).map(|pod| &*pod.labels).collect();
    let mut policies: BTreeSet<_> = context.hub.selecting(namespace, &labels).into_iter().collect();
    if context.pods.facts_if_known(pod).is_some_and(|facts| facts.injected) {
        return policies;
    }
    let services = context.services_in(namespace);
    let behind = services.iter().filter(|service| labels.iter().any(|labels| service.selects(labels)));
    let behind: Vec<_> = behind.map(ToString::to_string).collect();
    policies.extend(context.services_of_policies.sharing(namespace, &behind));
    policies
}
