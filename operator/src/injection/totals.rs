//! The sum of what a pod's containers request, as Kubernetes adds it up.

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};

use super::containers::{is_native_sidecar, numbered};
use super::quantity::Amount;

/// The requests and limits of a pod for one resource, without its sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Totals {
    /// The requests.
    pub request: Total,
    /// The limits.
    pub limit: Total,
    /// Whether request and limit are to stay equal: the pod is Guaranteed, or sets both to the same amount.
    pub equal: bool,
    /// Which amounts the pod itself has with the sidecar's.
    pub of_pod: OfPod,
}

/// Which amounts a pod has beside those of its containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OfPod {
    /// It sets the request, or a limit without it.
    pub request: bool,
    /// It sets the limit.
    pub limit: bool,
}

/// Requests, or limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Total {
    /// The sum for what keeps running: the sidecar adds to it.
    pub running: Amount,
    /// Largest amount while the init containers run, beside which the sidecar does not run yet.
    pub starting: Amount,
}

impl Total {
    /// Returns the total of the pod if the sidecar adds this.
    #[must_use]
    pub fn with(&self, sidecar: Amount) -> Amount {
        self.running.plus(sidecar).max(self.starting)
    }
}

impl Totals {
    /// Adds up a resource of a pod. Where the pod itself sets an amount, the API server fills in what is missing beside it: before
    /// the webhook is asked, or from Kubernetes 1.37 on after it.
    #[must_use]
    pub fn of(spec: &PodSpec, resource: &str, is_guaranteed: bool) -> Self {
        let own = |part| amount(spec.resources.as_ref(), part, resource);
        let (own_request, own_limit) = (own(Part::Requests), own(Part::Limits));
        let mut containers = numbered(spec).map(|(_, _, container)| container);
        let of_containers = |part| add_up(spec, |container| of_container(container, part, resource));
        let fixed = |running| Total { running, starting: Amount::ZERO };
        let requests = of_containers(Part::Requests);
        let is_requested =
            containers.clone().any(|container| of_container(container, Part::Requests, resource).is_some());
        let filled = own_limit.map(|limit| if is_requested { requests.with(Amount::ZERO) } else { limit });
        let request = own_request.or(filled).map_or(requests, fixed);
        let limit = own_limit.map_or_else(|| of_containers(Part::Limits), fixed);
        let is_filled = own_request.is_some()
            && containers.all(|container| of_container(container, Part::Limits, resource).is_some());
        let [requested, allowed] = [request, limit].map(|total| total.with(Amount::ZERO));
        let equal = match own_limit {
            Some(limit) => requested == limit,
            None => is_guaranteed || is_filled && requested >= allowed,
        };
        Self {
            request,
            limit,
            equal,
            of_pod: OfPod { request: own_request.or(own_limit).is_some(), limit: own_limit.is_some() },
        }
    }
}

/// Reports whether a pod is of the QoS class Guaranteed by its containers.
#[must_use]
pub fn is_guaranteed(spec: &PodSpec) -> bool {
    numbered(spec).all(|(_, _, container)| {
        ["cpu", "memory"].iter().all(|resource| {
            let limit = of_container(container, Part::Limits, resource).filter(|limit| *limit > Amount::ZERO);
            limit.is_some() && of_container(container, Part::Requests, resource) == limit
        })
    })
}

#[derive(Clone, Copy)]
enum Part {
    Requests,
    Limits,
}

/// Returns what a container requests. A request that is missing is as high as the limit.
fn of_container(container: &Container, part: Part, resource: &str) -> Option<Amount> {
    let found = |part| amount(container.resources.as_ref(), part, resource);
    match part {
        Part::Requests => found(Part::Requests).or_else(|| found(Part::Limits)),
        Part::Limits => found(Part::Limits),
    }
}

fn amount(resources: Option<&ResourceRequirements>, part: Part, resource: &str) -> Option<Amount> {
    let resources = resources?;
    let of_part = match part {
        Part::Requests => &resources.requests,
        Part::Limits => &resources.limits,
    };
    Amount::parse(&of_part.as_ref()?.get(resource)?.0)
}

/// Adds up the containers: those that keep running, and the largest that runs alone while the pod starts.
fn add_up(spec: &PodSpec, amount: impl Fn(&Container) -> Option<Amount>) -> Total {
    let amount = |container: &Container| amount(container).unwrap_or_default();
    let mut running = spec.containers.iter().map(amount).fold(Amount::ZERO, Amount::plus);
    let (mut native, mut starting) = (Amount::ZERO, Amount::ZERO);
    for container in spec.init_containers.iter().flatten() {
        if is_native_sidecar(container) {
            native = native.plus(amount(container));
            starting = starting.max(native);
        } else {
            starting = starting.max(native.plus(amount(container)));
        }
    }
    running = running.plus(native);
    Total { running, starting }
}
