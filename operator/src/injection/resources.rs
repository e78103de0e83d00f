//! The resources of a sidecar: the configured requests and limits, made to fit the bounds that the LimitRanges of the namespace set, and
//! what the pod's containers request, as Kubernetes adds it up.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{Container, LimitRange, LimitRangeItem, PodSpec, ResourceRequirements};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use crate::injection::capture::{is_native_sidecar, numbered};
use crate::injection::quantity::Amount;

#[cfg(test)]
mod tests;

/// A resource that the sidecar requests.
#[derive(Debug, Clone, Copy)]
pub struct Resource {
    /// Its name.
    pub name: &'static str,
    /// The limit to which a ratio lowers the sidecar's before its request is raised; `None`: it only raises the request.
    lowered_to: Option<Amount>,
    /// The lowest limit with which a sidecar works, unless a lower one is configured.
    least: Amount,
    /// The step in which amounts are made to fit.
    step: Amount,
}

/// The processors.
pub const CPU: Resource = Resource {
    name: "cpu",
    lowered_to: Some(Amount::milli(200)),
    least: Amount::milli(100),
    step: Amount::milli(1),
};
/// The memory.
pub const MEMORY: Resource =
    Resource { name: "memory", lowered_to: None, least: Amount::mebibytes(64), step: Amount::milli(1000) };

/// The resources that the sidecar requests.
pub const RESOURCES: [Resource; 2] = [CPU, MEMORY];

/// Request and limit of the sidecar for one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Share {
    /// The request.
    pub request: Option<Amount>,
    /// The limit.
    pub limit: Option<Amount>,
}

/// Nothing that the sidecar can work with fits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NoRoom;

/// The request and limit of sidecars in pods whose requests equal their limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GuaranteedResources {
    /// Processors. Not a whole number: Kubernetes would take such CPUs from all others.
    pub cpu: Amount,
    /// Memory.
    pub memory: Amount,
}

impl GuaranteedResources {
    fn of(&self, resource: Resource) -> Amount {
        if resource.name == CPU.name { self.cpu } else { self.memory }
    }
}

/// The resources of a pod with its sidecar.
#[derive(Debug, Clone, PartialEq)]
pub struct Fitted {
    /// The resources of the sidecar.
    pub sidecar: ResourceRequirements,
    /// The resources of the pod itself, if it has some.
    pub pod: Option<ResourceRequirements>,
    /// Names of the resources whose annotations do not fit.
    pub ignored: Vec<&'static str>,
}

/// Fits the sidecar's resources into a pod. `annotated` are those with the pod's annotations applied.
pub fn fit(
    spec: &PodSpec,
    bounds: &Bounds,
    configured: &ResourceRequirements,
    annotated: &ResourceRequirements,
    guaranteed: &GuaranteedResources,
) -> Result<Fitted, NoRoom> {
    let is_guaranteed = is_guaranteed(spec);
    let mut fitted = Fitted { sidecar: annotated.clone(), pod: spec.resources.clone(), ignored: Vec::new() };
    for resource in RESOURCES {
        let place = Place {
            resource,
            totals: Totals::of(spec, resource.name, is_guaranteed),
            container: bounds.container(resource.name),
            pod: bounds.pod(resource.name),
        };
        let (configured, wanted) = (share(configured, resource), share(annotated, resource));
        let share = match place.as_annotated(configured, wanted) {
            Some(annotated) => annotated,
            None => {
                if wanted != configured {
                    fitted.ignored.push(resource.name);
                }
                place.fit(configured, guaranteed.of(resource))?
            }
        };
        // Quantities that need not change stay as they are written.
        if share != wanted {
            set(&mut fitted.sidecar, resource, share);
        }
        raise(fitted.pod.as_mut(), resource, &place.totals, share);
    }
    Ok(fitted)
}

fn share(resources: &ResourceRequirements, resource: Resource) -> Share {
    let read = |part: &Option<std::collections::BTreeMap<String, Quantity>>| {
        Amount::parse(&part.as_ref()?.get(resource.name)?.0)
    };
    Share { request: read(&resources.requests), limit: read(&resources.limits) }
}

fn set(resources: &mut ResourceRequirements, resource: Resource, share: Share) {
    for (part, amount) in [(&mut resources.requests, share.request), (&mut resources.limits, share.limit)] {
        let part = part.get_or_insert_default();
        match amount {
            Some(amount) => part.insert(resource.name.to_owned(), amount.quantity()),
            None => part.remove(resource.name),
        };
    }
}

/// Returns the resources of a pod itself after others have set them, with its sidecar's share, or `None` if it has none. `spec` is
/// without the sidecar, and `noted` has the amounts that included the share. An amount that is not smaller includes it still.
pub fn share_again(
    spec: &PodSpec,
    sidecar: &ResourceRequirements,
    noted: &ResourceRequirements,
) -> Option<ResourceRequirements> {
    let mut pod = spec.resources.clone();
    for resource in RESOURCES {
        let mut totals = Totals::of(spec, resource.name, false);
        let (now, noted) = (share(pod.as_ref()?, resource), share(noted, resource));
        let includes = |now: Option<Amount>, noted| now.zip(noted).is_some_and(|(now, noted)| now >= noted);
        totals.of_pod.request &= !includes(now.request, noted.request);
        totals.of_pod.limit &= !includes(now.limit, noted.limit);
        raise(pod.as_mut(), resource, &totals, share(sidecar, resource));
    }
    pod
}

/// Raises the resources of the pod itself by the sidecar's.
fn raise(pod: Option<&mut ResourceRequirements>, resource: Resource, totals: &Totals, share: Share) {
    let Some(pod) = pod else { return };
    let (request, limit) = (share.request.or(share.limit), share.limit.or(share.request));
    let parts = [
        (&mut pod.requests, totals.of_pod.request, totals.request, request),
        (&mut pod.limits, totals.of_pod.limit, totals.limit, limit),
    ];
    for (part, is_set, before, amount) in parts {
        if let (true, Some(amount)) = (is_set, amount) {
            part.get_or_insert_default().insert(resource.name.to_owned(), before.with(amount).quantity());
        }
    }
}

/// Where one resource of a sidecar must fit.
struct Place {
    resource: Resource,
    totals: Totals,
    container: Bound,
    pod: Bound,
}

impl Place {
    /// Returns what the annotations of the pod ask for, if it differs from what is configured and fits.
    fn as_annotated(&self, configured: Share, wanted: Share) -> Option<Share> {
        if wanted == configured {
            return None;
        }
        let share = match (self.totals.equal, wanted.limit.filter(|_| wanted.limit != configured.limit)) {
            (false, _) => wanted,
            // The other one follows, unless both are chosen and differ.
            (true, Some(limit)) if wanted.request == configured.request || wanted.request == Some(limit) => {
                equal(limit)
            }
            (true, Some(_)) => return None,
            (true, None) => equal(wanted.request?),
        };
        let is_pinned = self.totals.equal && self.is_pinned(share.limit);
        (!is_pinned && self.allows(share)).then_some(share)
    }

    /// Makes the configured share fit.
    fn fit(&self, configured: Share, guaranteed: Amount) -> Result<Share, NoRoom> {
        let share = if self.totals.equal { self.fit_equal(guaranteed) } else { self.fit_apart(configured) };
        share.filter(|share| self.allows(*share)).ok_or(NoRoom)
    }

    /// Makes an amount fit that is both request and limit.
    fn fit_equal(&self, wanted: Amount) -> Option<Share> {
        let mut amount = wanted.max(self.min_request()).max(self.min_limit());
        if self.is_pinned(Some(amount)) {
            amount = amount.plus(self.resource.step);
        }
        let max = self.max().unwrap_or(amount);
        if amount > max {
            amount = max.floor(self.resource.step);
            if self.is_pinned(Some(amount)) {
                amount = amount.minus(self.resource.step);
            }
        }
        (amount >= self.resource.least.min(wanted)).then(|| equal(amount))
    }

    /// Makes a request and a limit fit: the limit is lowered first, then the request is raised.
    fn fit_apart(&self, configured: Share) -> Option<Share> {
        if self.container.is_none() && self.pod.is_none() {
            return Some(configured);
        }
        let needs_limit = self.container.ratio.is_some()
            || self.pod.ratio.is_some()
            || self.container.max.is_some()
            || self.container.default.is_some()
            || (self.pod.max.is_some() && self.totals.limit.running > Amount::ZERO);
        let default = || self.container.default.or(self.resource.lowered_to).unwrap_or(self.resource.least);
        let limit = match configured.limit {
            None if needs_limit => Some(default().max(configured.request.unwrap_or_default())),
            limit => limit,
        };
        let Some(mut limit) = limit else {
            let request = configured.request.unwrap_or_default().max(self.min_request());
            return Some(Share { request: Some(request), limit: None });
        };
        let least = self.resource.least.min(configured.limit.unwrap_or(limit));
        let mut request = configured.request.unwrap_or(limit).max(self.min_request());
        limit = limit.max(self.min_limit()).max(request);
        if let Some(max) = self.max() {
            limit = limit.min(max.floor(self.resource.step));
            request = request.min(limit);
        }
        if let Some(ratio) = self.container.ratio {
            limit = self.lowered(limit, request.times(ratio));
            request = request.max(limit.divided(ratio, self.resource.step));
        }
        if let Some(ratio) = self.pod.ratio {
            let allowed = self.totals.request.with(request).times(ratio);
            limit = self.lowered(limit, allowed.minus(self.totals.limit.running)).max(request);
            let needed = self.totals.limit.with(limit).divided(ratio, self.resource.step);
            let total = self.totals.request;
            request = request.max(missing(needed, total.with(request), total.running));
        }
        (limit >= least && request <= limit).then_some(Share { request: Some(request), limit: Some(limit) })
    }

    /// Lowers a limit towards what a ratio allows, as far as the resource may be lowered for one.
    fn lowered(&self, limit: Amount, allowed: Amount) -> Amount {
        match self.resource.lowered_to {
            Some(least) if limit > allowed => limit.min(allowed.max(least)),
            Some(_) | None => limit,
        }
    }

    fn min_request(&self) -> Amount {
        self.container.min.max(missing(
            self.pod.min,
            self.totals.request.with(Amount::ZERO),
            self.totals.request.running,
        ))
    }

    fn min_limit(&self) -> Amount {
        self.container.min.max(missing(
            self.pod.min,
            self.totals.limit.with(Amount::ZERO),
            self.totals.limit.running,
        ))
    }

    /// Returns the largest limit that the bounds allow.
    fn max(&self) -> Option<Amount> {
        let of_pod = self
            .pod
            .max
            .map(|max| max.minus(self.totals.limit.running).min(max.minus(self.totals.request.running)));
        [self.container.max, of_pod].into_iter().flatten().min()
    }

    /// Reports whether the API server accepts a share.
    fn allows(&self, share: Share) -> bool {
        let Share { request, limit } = share;
        // The API server gives a container without a limit this one.
        let limit = limit.or(self.container.default);
        let effective = request.or(limit);
        let container = is_within(&self.container, effective, limit);
        let total = |with: Option<Amount>, total: Total| {
            let sum = total.with(with.unwrap_or_default());
            (with.is_some() || sum > Amount::ZERO).then_some(sum)
        };
        let pod =
            is_within(&self.pod, total(effective, self.totals.request), total(limit, self.totals.limit));
        container && pod && limit.is_none_or(|limit| effective.is_none_or(|request| request <= limit))
    }

    /// Reports whether Kubernetes would reserve whole CPUs for a container with this request and limit.
    fn is_pinned(&self, amount: Option<Amount>) -> bool {
        self.resource.name == CPU.name && amount.is_some_and(Amount::is_whole)
    }
}

fn equal(amount: Amount) -> Share {
    Share { request: Some(amount), limit: Some(amount) }
}

/// Returns what is missing to a minimum, given the total without the sidecar and the part to which the sidecar adds.
fn missing(min: Amount, total: Amount, running: Amount) -> Amount {
    if total >= min { Amount::ZERO } else { min.minus(running) }
}

/// Reports whether the LimitRanger accepts a request and a limit.
fn is_within(bound: &Bound, request: Option<Amount>, limit: Option<Amount>) -> bool {
    let min = bound.min == Amount::ZERO
        || request.is_some_and(|request| request >= bound.min)
            && limit.is_none_or(|limit| limit >= bound.min);
    let max = bound.max.is_none_or(|max| {
        limit.is_some_and(|limit| limit <= max) && request.is_none_or(|request| request <= max)
    });
    let ratio = bound.ratio.is_none_or(|ratio| {
        let request = request.filter(|request| *request > Amount::ZERO);
        request.zip(limit).is_some_and(|(request, limit)| limit <= request.times(ratio))
    });
    min && max && ratio
}

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
    pub fn with(&self, sidecar: Amount) -> Amount {
        self.running.plus(sidecar).max(self.starting)
    }
}

impl Totals {
    /// Adds up a resource of a pod. Where the pod itself sets an amount, the API server fills in what is missing beside it: before
    /// the webhook is asked, or from Kubernetes 1.37 on after it.
    pub fn of(spec: &PodSpec, resource: &str, is_guaranteed: bool) -> Self {
        let own = |part| amount(spec.resources.as_ref(), part, resource);
        let (own_request, own_limit) = (own(AmountPart::Requests), own(AmountPart::Limits));
        let mut containers = numbered(spec).map(|(_, _, container)| container);
        let of_containers = |part| add_up(spec, |container| of_container(container, part, resource));
        let fixed = |running| Total { running, starting: Amount::ZERO };
        let requests = of_containers(AmountPart::Requests);
        let is_requested = containers
            .clone()
            .any(|container| of_container(container, AmountPart::Requests, resource).is_some());
        let filled = own_limit.map(|limit| if is_requested { requests.with(Amount::ZERO) } else { limit });
        let request = own_request.or(filled).map_or(requests, fixed);
        let limit = own_limit.map_or_else(|| of_containers(AmountPart::Limits), fixed);
        let is_filled = own_request.is_some()
            && containers.all(|container| of_container(container, AmountPart::Limits, resource).is_some());
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
pub fn is_guaranteed(spec: &PodSpec) -> bool {
    numbered(spec).all(|(_, _, container)| {
        ["cpu", "memory"].iter().all(|resource| {
            let limit =
                of_container(container, AmountPart::Limits, resource).filter(|limit| *limit > Amount::ZERO);
            limit.is_some() && of_container(container, AmountPart::Requests, resource) == limit
        })
    })
}

#[derive(Clone, Copy)]
enum AmountPart {
    Requests,
    Limits,
}

/// Returns what a container requests. A request that is missing is as high as the limit.
fn of_container(container: &Container, part: AmountPart, resource: &str) -> Option<Amount> {
    let found = |part| amount(container.resources.as_ref(), part, resource);
    match part {
        AmountPart::Requests => found(AmountPart::Requests).or_else(|| found(AmountPart::Limits)),
        AmountPart::Limits => found(AmountPart::Limits),
    }
}

fn amount(resources: Option<&ResourceRequirements>, part: AmountPart, resource: &str) -> Option<Amount> {
    let resources = resources?;
    let of_part = match part {
        AmountPart::Requests => &resources.requests,
        AmountPart::Limits => &resources.limits,
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

/// The bounds of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Bounds {
    /// The bounds of each container, by resource.
    container: BTreeMap<String, Bound>,
    /// The bounds of the sum of a pod's containers, by resource.
    pod: BTreeMap<String, Bound>,
}

/// The bounds of one resource.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Bound {
    /// Least request, and least limit.
    pub min: Amount,
    /// Largest limit, and largest request.
    pub max: Option<Amount>,
    /// Largest limit in relation to the request.
    pub ratio: Option<Amount>,
    /// The limit of a container that sets none.
    pub default: Option<Amount>,
}

impl Bound {
    /// Reports whether nothing is bounded.
    pub fn is_none(&self) -> bool {
        self.min == Amount::ZERO && self.max.is_none() && self.ratio.is_none() && self.default.is_none()
    }
}

impl Bounds {
    /// Returns the bounds that all of these set together.
    pub fn of<'a>(ranges: impl IntoIterator<Item = &'a LimitRange>) -> Self {
        let mut bounds = Self::default();
        for item in ranges.into_iter().filter_map(|range| range.spec.as_ref()).flat_map(|spec| &spec.limits) {
            match item.type_.as_str() {
                "Container" => narrow(&mut bounds.container, item),
                "Pod" => narrow(&mut bounds.pod, item),
                _ => {}
            }
        }
        bounds
    }

    /// Returns the bounds of a container for a resource.
    pub fn container(&self, resource: &str) -> Bound {
        self.container.get(resource).copied().unwrap_or_default()
    }

    /// Returns the bounds of a pod for a resource.
    pub fn pod(&self, resource: &str) -> Bound {
        self.pod.get(resource).copied().unwrap_or_default()
    }
}

/// Narrows bounds by an item of a LimitRange. The first default of several is used, as the API server does.
fn narrow(all: &mut BTreeMap<String, Bound>, item: &LimitRangeItem) {
    let mut each = |quantities: &Option<BTreeMap<String, Quantity>>, narrow: fn(&mut Bound, Amount)| {
        for (resource, quantity) in quantities.iter().flatten() {
            if let Some(amount) = Amount::parse(&quantity.0) {
                narrow(all.entry(resource.clone()).or_default(), amount);
            }
        }
    };
    each(&item.min, |bound, amount| bound.min = bound.min.max(amount));
    each(&item.max, |bound, amount| bound.max = Some(bound.max.map_or(amount, |max| max.min(amount))));
    each(&item.max_limit_request_ratio, |bound, amount| {
        bound.ratio = Some(bound.ratio.map_or(amount, |ratio| ratio.min(amount)));
    });
    each(&item.default, |bound, amount| bound.default = bound.default.or(Some(amount)));
}
