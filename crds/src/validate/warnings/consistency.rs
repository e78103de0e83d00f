//! Warnings about `consistency` and `onStoreFailure`.

use sluice_config::lease;
use sluice_limiter::Rate;

use crate::compile::rate::compile_rate;
use crate::policy::{Algorithm, Consistency, Limit, OnStoreFailure, RateLimitPolicySpec};
use crate::violation::Violation;

/// Returns the warnings about how a policy uses the store.
pub(super) fn warnings(spec: &RateLimitPolicySpec) -> Vec<Violation> {
    let mut warnings = Vec::new();
    match spec.consistency {
        Consistency::Strict => {}
        Consistency::Leased if spec.limits.iter().any(can_be_leased) => {
            let limits = spec.limits.iter().enumerate();
            warnings.extend(limits.filter_map(|(n, limit)| too_small_to_lease(n, limit)));
        }
        Consistency::Leased => warnings.push(Violation::new(
            "spec.consistency",
            "no limit of this policy can be leased, so every request calls the store, as with Strict: leases \
             are possible for hard limits whose sub-windows last 50ms or longer, and for tokenBucket and \
             gcra with a period of 1s or longer and a burst that takes 200ms or longer to fill",
        )),
        Consistency::Local if spec.limits.is_empty() => warnings.push(Violation::new(
            "spec.consistency",
            "has no effect, because the policy has no `limits`: `concurrency` is always counted in the store",
        )),
        Consistency::Local => warnings.push(Violation::new(
            "spec.consistency",
            "each pod admits the limit divided by the number of pods that the policy selects: a client whose \
             requests are not spread evenly over these pods gets less than the limit",
        )),
    }
    if spec.on_store_failure == OnStoreFailure::Share
        && spec.concurrency.iter().any(|limit| limit.max.is_some())
    {
        warnings.push(Violation::new(
            "spec.onStoreFailure",
            "`concurrency` limits with `max` cannot be divided among pods: while the store does not answer, \
             they admit requests as with Allow",
        ));
    }
    warnings
}

fn can_be_leased(limit: &Limit) -> bool {
    rates_to_lease(limit).is_some_and(|rates| lease::can_be_leased(&rates))
}

fn too_small_to_lease(limit_index: usize, limit: &Limit) -> Option<Violation> {
    let (rate_index, requests) = lease::too_small_to_lease(&rates_to_lease(limit)?)?;
    let quota = match limit.algorithm.as_ref() {
        Some(Algorithm { token_bucket: Some(_), .. } | Algorithm { gcra: Some(_), .. }) => "a burst",
        _ => "a limit",
    };
    let min = lease::MIN_LEASED_REQUESTS;
    Some(Violation::new(
        format!("spec.limits[{limit_index}].rates[{rate_index}]"),
        format!(
            "{quota} of {requests} is too small for leases, which save calls from {min} requests on: a pod \
             whose share is below about 20 calls the store for every request. Strict costs the same here: use \
             it, or move this limit to a policy of its own"
        ),
    ))
}

/// Returns the rates of a limit, unless its enforcement rules out leases.
fn rates_to_lease(limit: &Limit) -> Option<Vec<Rate>> {
    let is_elastic = limit.enforcement.as_ref().is_some_and(|enforcement| enforcement.elastic.is_some());
    let rates = limit.rates.iter().map(|rate| compile_rate(limit, rate).rate().ok());
    if is_elastic { None } else { rates.collect() }
}
