//! What is legal and probably wrong.

use sluice_config::rate::MIN_LEASED_REQUESTS;
use sluice_limiter::Rate;

use super::Violation;
use crate::rate_limit_policy::{
    Algorithm, Bound, Consistency, LeakyBucket, Limit, OnStoreFailure, RateLimitPolicy, RateLimitPolicySpec,
    SlidingWindowLog,
};
use crate::{compile, duration};

/// Longer than this most clients and load balancers do not wait for an answer: 60 s.
const PATIENCE_MS: u64 = 60_000;

pub(super) fn warnings(policy: &RateLimitPolicy) -> Vec<Violation> {
    let mut warnings = where_counted(&policy.spec);
    let has_ip_limit = policy.spec.limits.iter().any(|limit| {
        limit.key.as_ref().is_none_or(|key| key.parts.iter().any(|part| part.client_ip.is_some()))
    });
    for (l, limit) in policy.spec.limits.iter().enumerate() {
        let path = format!("spec.limits[{l}]");
        for n in 0..limit.rates.len() {
            if let Some(why) = never_binds(limit, n) {
                warnings.push(Violation::new(format!("{path}.rates[{n}]"), format!("can never bind: {why}")));
            }
        }
        let algorithm = limit.algorithm.as_ref();
        if let Some(Algorithm { sliding_window_counter: Some(window), .. }) = algorithm
            && window.bound == Bound::Guaranteed
        {
            for (n, _) in
                limit.rates.iter().enumerate().filter(|(_, rate)| rate.sub_windows.unwrap_or(1) == 1)
            {
                warnings.push(Violation::new(
                    format!("{path}.rates[{n}]"),
                    "with `bound: Guaranteed` and one sub-window the whole previous period counts: a steady client gets \
                     half of the number. Set subWindows, such as 10",
                ));
            }
        }
        if let Some(Algorithm { leaky_bucket: Some(LeakyBucket { max_wait }), .. }) = algorithm
            && millis(max_wait) > PATIENCE_MS
        {
            warnings.push(Violation::new(
                format!("{path}.algorithm.leakyBucket.maxWait"),
                "most clients and load balancers give up after 60s or earlier",
            ));
        }
        let only_headers =
            limit.key.as_ref().is_some_and(|key| key.parts.iter().all(|part| part.header.is_some()));
        if only_headers && !has_ip_limit {
            warnings.push(Violation::new(
                format!("{path}.key"),
                "a client that changes the header has a new counter each time: unless something before this pod \
                 verifies it, add a limit by clientIP",
            ));
        }
    }
    warnings
}

/// Where requests are counted, with the store and without.
fn where_counted(spec: &RateLimitPolicySpec) -> Vec<Violation> {
    let mut warnings = Vec::new();
    match spec.consistency {
        Consistency::Strict => {}
        Consistency::Leased if spec.limits.iter().any(can_be_leased) => {
            warnings.extend(spec.limits.iter().enumerate().filter_map(|(l, limit)| too_small_to_lease(l, limit)));
        }
        Consistency::Leased => warnings.push(Violation::new(
            "spec.consistency",
            "no limit of this policy can be leased: each request is a question to the store, as with Strict. Leases are for \
             hard windows with sub-windows of 50ms or longer, and for tokenBucket and gcra",
        )),
        Consistency::Local if spec.limits.is_empty() => warnings.push(Violation::new(
            "spec.consistency",
            "says where `limits` are counted, of which there are none: places of `concurrency` are always asked of the store",
        )),
        Consistency::Local => warnings.push(Violation::new(
            "spec.consistency",
            "each pod counts alone, by the number divided by the pods that share the policy: a client whose requests do \
             not reach all of them alike gets less than the number",
        )),
    }
    if spec.on_store_failure == OnStoreFailure::Share
        && spec.concurrency.iter().any(|limit| limit.max.is_some())
    {
        warnings.push(Violation::new(
            "spec.onStoreFailure",
            "places of `concurrency` cannot be shared out: without the store such a limit admits, as with Allow",
        ));
    }
    warnings
}

fn can_be_leased(limit: &Limit) -> bool {
    rates_to_lease(limit).is_some_and(|rates| sluice_config::rate::can_be_leased(&rates))
}

fn too_small_to_lease(l: usize, limit: &Limit) -> Option<Violation> {
    let (n, number) = sluice_config::rate::too_small_to_lease(&rates_to_lease(limit)?)?;
    let what = match limit.algorithm.as_ref() {
        Some(Algorithm { token_bucket: Some(_), .. } | Algorithm { gcra: Some(_), .. }) => "a burst",
        _ => "a number",
    };
    Some(Violation::new(
        format!("spec.limits[{l}].rates[{n}]"),
        format!(
            "{what} of {number} leaves little to lease, as everything below {MIN_LEASED_REQUESTS}: a pod whose part of it is below \
             about 20 asks the store about each request. Strict then costs the same: use it, or give this limit a policy of its own"
        ),
    ))
}

/// The rates of a limit that is leased if they can be.
fn rates_to_lease(limit: &Limit) -> Option<Vec<Rate>> {
    let is_elastic = limit.enforcement.as_ref().is_some_and(|enforcement| enforcement.elastic.is_some());
    let rates = limit.rates.iter().map(|rate| compile::rate(limit, rate).rate().ok());
    if is_elastic { None } else { rates.collect() }
}

fn millis(text: &str) -> u64 {
    duration::period(text).map_or(0, sluice_limiter::Period::millis)
}

/// Why one rate of a limit never denies what the others admit. Says nothing when in doubt.
fn never_binds(limit: &Limit, n: usize) -> Option<String> {
    let rate = &limit.rates[n];
    let (requests, period) = (i128::from(rate.requests), i128::from(millis(&rate.per)));
    let others = || limit.rates.iter().enumerate().filter(|&(m, _)| m != n);
    if let Some((m, _)) =
        others().find(|(_, other)| other.requests <= rate.requests && millis(&other.per) as i128 > period)
    {
        return Some(format!("rates[{m}] admits no more in a longer period"));
    }
    let shares_burst = match limit.algorithm.as_ref() {
        Some(Algorithm { gcra: Some(_), .. } | Algorithm { leaky_bucket: Some(_), .. }) => true,
        Some(Algorithm { token_bucket: Some(bucket), .. }) => bucket.burst.is_some(),
        _ => false,
    };
    for (m, other) in others() {
        let (fewer, shorter) = (i128::from(other.requests), i128::from(millis(&other.per)));
        if shares_burst {
            // Of buckets of one size the slowest decides.
            if fewer * period < requests * shorter {
                return Some(format!("rates[{m}] is slower and its burst is the same"));
            }
        } else if is_window(limit) && shorter < period {
            // So many windows of the other lie in one of this rate's, those that it cuts at both ends included; and two
            // more, so that this rate's own estimate does not deny either.
            let most = fewer * ((period + shorter - 1) / shorter);
            if most + 2 * fewer <= requests {
                let text = |millis: i128| duration::format(millis as u64);
                return Some(format!(
                    "rates[{m}] admits {fewer} per {}, which is {most} in {}",
                    text(shorter),
                    text(period)
                ));
            }
        }
    }
    None
}

/// Whether no more than the number is admitted in a window, hard, and denials do not count.
fn is_window(limit: &Limit) -> bool {
    let counts = match limit.algorithm.as_ref() {
        None
        | Some(Algorithm { sliding_window_counter: Some(_), .. } | Algorithm { fixed_window: Some(_), .. }) => {
            true
        }
        Some(Algorithm { sliding_window_log: Some(SlidingWindowLog { count_denied, .. }), .. }) => {
            !count_denied
        }
        _ => false,
    };
    counts && limit.enforcement.as_ref().is_none_or(|enforcement| enforcement.soft.is_none())
}
