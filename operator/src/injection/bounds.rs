//! The bounds that the LimitRanges of a namespace set for its containers and pods.

use std::collections::BTreeMap;

use k8s_openapi::api::core::v1::{LimitRange, LimitRangeItem};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity;

use super::quantity::Amount;

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
    #[must_use]
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
                "Container" => add(&mut bounds.container, item),
                "Pod" => add(&mut bounds.pod, item),
                _ => {}
            }
        }
        bounds
    }

    /// Returns the bounds of a container for a resource.
    #[must_use]
    pub fn container(&self, resource: &str) -> Bound {
        self.container.get(resource).copied().unwrap_or_default()
    }

    /// Returns the bounds of a pod for a resource.
    #[must_use]
    pub fn pod(&self, resource: &str) -> Bound {
        self.pod.get(resource).copied().unwrap_or_default()
    }
}

/// Narrows bounds by an item of a LimitRange. The first default of several is used, as the API server does.
fn add(all: &mut BTreeMap<String, Bound>, item: &LimitRangeItem) {
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
