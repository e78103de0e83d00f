//! From a valid policy to what sidecars enforce. Pure: equal specs compile to equal policies, with equal hashes.

use sluice_config::policy::{
    AddressHeader, Alignment, Bound, Capacity, ClientAddress, CompiledLimit, CompiledPolicy, CompiledRate,
    Consistency, Elastic, HeaderMatch, KeyPart, Match, Mode, OnMissing, OnStoreFailure, PathMatch,
    RateAlgorithm, ValueMatch, Window,
};

use crate::concurrency;
use crate::duration;
use crate::rate_limit_policy as api;
pub use crate::summary::summary;
use crate::validate::ValidPolicy;

/// Guava's.
const COLD_FACTOR: u64 = 3;

/// Compiles a valid policy.
#[must_use]
pub fn compile(valid: &ValidPolicy) -> CompiledPolicy {
    let policy = &valid.policy;
    let spec = &policy.spec;
    CompiledPolicy {
        namespace: policy.metadata.namespace.clone().unwrap_or_default(),
        name: policy.metadata.name.clone().unwrap_or_default(),
        mode: mode(spec.mode),
        on_store_failure: match spec.on_store_failure {
            api::OnStoreFailure::Allow => OnStoreFailure::Allow,
            api::OnStoreFailure::Deny => OnStoreFailure::Deny,
            api::OnStoreFailure::Share => OnStoreFailure::Share,
        },
        consistency: match spec.consistency {
            api::Consistency::Strict => Consistency::Strict,
            api::Consistency::Leased => Consistency::Leased,
            api::Consistency::Local => Consistency::Local,
        },
        client_address: spec.client_address.as_ref().map(|address| ClientAddress {
            trusted_proxies: address.trusted_proxies.iter().filter_map(|net| net.parse().ok()).collect(),
            header: match address.header {
                api::AddressHeader::XForwardedFor => AddressHeader::XForwardedFor,
                api::AddressHeader::Forwarded => AddressHeader::Forwarded,
            },
        }),
        limits: spec
            .limits
            .iter()
            .map(|limit| compile_limit(spec.mode, limit))
            .chain(spec.concurrency.iter().map(|limit| concurrency::compile_limit(spec.mode, limit)))
            .collect(),
    }
}

fn mode(mode: api::Mode) -> Mode {
    match mode {
        api::Mode::Enforce => Mode::Enforce,
        api::Mode::Shadow => Mode::Shadow,
    }
}

fn compile_limit(policy_mode: api::Mode, limit: &api::Limit) -> CompiledLimit {
    let (key, on_missing) = key(limit.key.as_ref());
    CompiledLimit {
        name: limit.name.clone(),
        mode: limit_mode(policy_mode, limit.mode),
        matches: limit.matches.iter().map(compile_match).collect(),
        key,
        on_missing,
        rates: limit.rates.iter().map(|one| rate(limit, one)).collect(),
    }
}

/// Shadow is the cautious word: it wins wherever it stands.
pub(crate) fn limit_mode(policy: api::Mode, limit: Option<api::Mode>) -> Mode {
    match (policy, limit) {
        (api::Mode::Shadow, _) | (_, Some(api::Mode::Shadow)) => Mode::Shadow,
        _ => Mode::Enforce,
    }
}

/// A key's parts, and what to do without one of them.
pub(crate) fn key(key: Option<&api::Key>) -> (Vec<KeyPart>, OnMissing) {
    let parts = key.iter().flat_map(|key| &key.parts).filter_map(key_part).collect();
    let on_missing = match key.map(|key| key.on_missing).unwrap_or_default() {
        api::OnMissing::Shared => OnMissing::Shared,
        api::OnMissing::Skip => OnMissing::Skip,
        api::OnMissing::Deny => OnMissing::Deny,
    };
    (parts, on_missing)
}

/// One rate of a limit.
pub(crate) fn rate(limit: &api::Limit, rate: &api::Rate) -> CompiledRate {
    let algorithm = counted(limit, rate);
    let enforcement = limit.enforcement.as_ref();
    let soft = enforcement.and_then(|enforcement| enforcement.soft.as_ref());
    let elastic = enforcement.and_then(|enforcement| enforcement.elastic.as_ref());
    CompiledRate {
        requests: number(rate.requests),
        period_millis: millis(&rate.per),
        algorithm: match (algorithm, soft, elastic) {
            (Counted::Window(window), Some(soft), _) => RateAlgorithm::Soft {
                window,
                over_percent: number(soft.over_percent),
                for_millis: millis(&soft.lasts),
            },
            (algorithm, _, Some(elastic)) => RateAlgorithm::Elastic(Box::new(Elastic {
                algorithm: algorithm.hard(),
                requests: number(elastic.requests),
                below_percent: number(elastic.utilization_below_percent),
                capacity: Capacity::InFlight(elastic.capacity.in_flight.map_or(1, number)),
            })),
            (algorithm, _, None) => algorithm.hard(),
        },
    }
}

/// How a rate counts, whatever its enforcement.
enum Counted {
    Window(Window),
    Other(RateAlgorithm),
}

impl Counted {
    fn hard(self) -> RateAlgorithm {
        match self {
            Self::Window(window) => RateAlgorithm::window(window),
            Self::Other(algorithm) => algorithm,
        }
    }
}

fn counted(limit: &api::Limit, rate: &api::Rate) -> Counted {
    let algorithm = limit.algorithm.clone().unwrap_or_default();
    if let Some(api::FixedWindow { alignment }) = algorithm.fixed_window {
        return Counted::Window(Window::FixedWindow {
            alignment: match alignment {
                api::Alignment::Clock => Alignment::Clock,
                api::Alignment::FirstRequest => Alignment::FirstRequest,
                api::Alignment::Spread => Alignment::Spread,
            },
        });
    }
    let other = if let Some(log) = algorithm.sliding_window_log {
        RateAlgorithm::SlidingWindowLog {
            min_interval_millis: log.min_interval.map_or(0, |interval| millis(&interval)),
            count_denied: log.count_denied,
        }
    } else if let Some(bucket) = algorithm.token_bucket {
        match bucket.warm_up {
            Some(warm_up) => RateAlgorithm::WarmUp {
                period_millis: millis(&warm_up.period),
                cold_factor: warm_up.cold_factor.map_or(COLD_FACTOR, number),
            },
            // A bucket for a rate of none holds one all the same, and never fills.
            None => {
                RateAlgorithm::TokenBucket { burst: number(bucket.burst.unwrap_or(rate.requests)).max(1) }
            }
        }
    } else if let Some(gcra) = algorithm.gcra {
        RateAlgorithm::Gcra { burst: gcra.burst.map_or(1, number) }
    } else if let Some(bucket) = algorithm.leaky_bucket {
        RateAlgorithm::LeakyBucket { max_wait_millis: millis(&bucket.max_wait) }
    } else {
        let bound = match algorithm.sliding_window_counter.unwrap_or_default().bound {
            api::Bound::Estimate => Bound::Estimate,
            api::Bound::Guaranteed => Bound::Guaranteed,
        };
        let sub_windows = rate.sub_windows.map_or(1, number);
        return Counted::Window(Window::SlidingWindowCounter { sub_windows, bound });
    };
    Counted::Other(other)
}

/// A number that has been found in its range.
fn number(value: i64) -> u64 {
    u64::try_from(value).unwrap_or(0)
}

/// A duration that has been found to be one.
fn millis(text: &str) -> u64 {
    duration::period(text).map_or(1, sluice_limiter::Period::millis)
}

pub(crate) fn compile_match(entry: &api::Match) -> Match {
    Match {
        path: entry.path.as_ref().and_then(|path| match path {
            api::PathMatch { exact: Some(exact), .. } => Some(PathMatch::Exact(exact.clone())),
            api::PathMatch { prefix: Some(prefix), .. } => Some(PathMatch::Prefix(prefix.clone())),
            api::PathMatch { regex: Some(regex), .. } => Some(PathMatch::Regex(regex.clone())),
            _ => None,
        }),
        methods: entry.methods.clone(),
        headers: entry
            .headers
            .iter()
            .map(|header| HeaderMatch {
                name: header.name.clone(),
                value: match header {
                    api::HeaderMatch { exact: Some(exact), .. } => ValueMatch::Exact(exact.clone()),
                    api::HeaderMatch { regex: Some(regex), .. } => ValueMatch::Regex(regex.clone()),
                    api::HeaderMatch { present, .. } => ValueMatch::Present(present.unwrap_or(true)),
                },
            })
            .collect(),
    }
}

fn key_part(part: &api::KeyPart) -> Option<KeyPart> {
    match part {
        api::KeyPart { header: Some(header), .. } => Some(KeyPart::Header(header.name.to_ascii_lowercase())),
        api::KeyPart { client_ip: Some(ip), .. } => Some(KeyPart::ClientIp {
            ipv4_prefix: ip.ipv4_prefix.and_then(|bits| u8::try_from(bits).ok()).unwrap_or(32),
            ipv6_prefix: ip.ipv6_prefix.and_then(|bits| u8::try_from(bits).ok()).unwrap_or(64),
        }),
        _ => None,
    }
}
