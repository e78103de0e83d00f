//! The sum of what a pod's containers request, as Kubernetes adds it up.

use k8s_openapi::api::core::v1::{Container, PodSpec, ResourceRequirements};

use super::containers::is_native_sidecar;
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
    /// Whether the pod itself sets the request, the limit, or both.
    pub of_pod: OfPod,
}

/// Which amounts a pod sets beside those of its containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct OfPod {
    /// It sets the request.
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
    /// Adds up a resource of a pod.
    #[must_use]
    pub fn of(spec: &PodSpec, resource: &str, is_guaranteed: bool) -> Self {
        let own = |part| amount(spec.resources.as_ref(), part, resource);
        let (own_request, own_limit) = (own(Part::Requests), own(Part::Limits));
        let total = |own: Option<Amount>, part| match own {
            Some(running) => Total { running, starting: Amount::ZERO },
            None => add_up(spec, |container| of_container(container, part, resource)),
        };
        let sets_both_equal = own_limit.is_some() && own_request.or(own_limit) == own_limit;
        Self {
            request: total(own_request.or(own_limit), Part::Requests),
            limit: total(own_limit, Part::Limits),
            equal: sets_both_equal || is_guaranteed && own_limit.is_none(),
            of_pod: OfPod { request: own_request.is_some(), limit: own_limit.is_some() },
        }
    }
}

/// Reports whether a pod is of the QoS class Guaranteed by its containers.
#[must_use]
pub fn is_guaranteed(spec: &PodSpec) -> bool {
    let mut containers = spec.containers.iter().chain(spec.init_containers.iter().flatten());
    containers.all(|container| {
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
