//! Warnings about settings that are valid but probably not intended.
//!
//! - [`consistency`]: settings of the store that have no effect or an unexpected one.
//! - [`redundant_rates`]: rates that never deny a request.

mod consistency;
mod redundant_rates;

use crate::duration;
use crate::policy::{Algorithm, Bound, LeakyBucket, Limit, RateLimitPolicySpec};
use crate::violation::Violation;

/// Time after which most clients and load balancers stop waiting for a response, in milliseconds.
const PATIENCE_MS: u64 = 60_000;

/// Returns all warnings about a valid policy.
pub(super) fn warnings(spec: &RateLimitPolicySpec) -> Vec<Violation> {
    let mut warnings = consistency::warnings(spec);
    let limits_addresses = spec.limits.iter().any(|limit| {
        limit.key.as_ref().is_none_or(|key| key.parts.iter().any(|part| part.client_ip.is_some()))
    });
    for (n, limit) in spec.limits.iter().enumerate() {
        let path = format!("spec.limits[{n}]");
        warnings.extend(redundant_rates::warnings(&path, limit));
        algorithm(&path, limit, &mut warnings);
        let only_headers =
            limit.key.as_ref().is_some_and(|key| key.parts.iter().all(|part| part.header.is_some()));
        if only_headers && !limits_addresses {
            warnings.push(Violation::new(
                format!("{path}.key"),
                "a client can get a new counter by changing the header: unless a proxy in front of the pods \
                 verifies the header, add a limit by clientIP",
            ));
        }
    }
    warnings
}

fn algorithm(path: &str, limit: &Limit, warnings: &mut Vec<Violation>) {
    let Some(algorithm) = &limit.algorithm else { return };
    if let Algorithm { sliding_window_counter: Some(window), .. } = algorithm
        && window.bound == Bound::Guaranteed
    {
        let rates = limit.rates.iter().enumerate();
        for (n, _) in rates.filter(|(_, rate)| rate.sub_windows.unwrap_or(1) == 1) {
            warnings.push(Violation::new(
                format!("{path}.rates[{n}]"),
                "with `bound: Guaranteed` and a single sub-window, a client with a steady rate gets only \
                 half of the limit, because the whole previous period counts: set subWindows, for example to \
                 10",
            ));
        }
    }
    if let Algorithm { leaky_bucket: Some(LeakyBucket { max_wait }), .. } = algorithm
        && duration::period(max_wait).is_ok_and(|wait| wait.millis() > PATIENCE_MS)
    {
        warnings.push(Violation::new(
            format!("{path}.algorithm.leakyBucket.maxWait"),
            "is longer than 60s, and most clients and load balancers stop waiting by then",
        ));
    }
}
