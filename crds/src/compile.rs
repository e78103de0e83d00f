//! From a valid policy to what sidecars enforce. Pure: equal specs compile to equal policies, with equal hashes.

use sluice_config::policy::{
    AddressHeader, ClientAddress, CompiledLimit, CompiledPolicy, CompiledRate, HeaderMatch, KeyPart, Match,
    Mode, OnMissing, OnStoreFailure, PathMatch, RateAlgorithm, ValueMatch,
};

use crate::duration;
use crate::rate_limit_policy as api;
use crate::validate::ValidPolicy;

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
        },
        client_address: spec.client_address.as_ref().map(|address| ClientAddress {
            trusted_proxies: address.trusted_proxies.iter().filter_map(|net| net.parse().ok()).collect(),
            header: match address.header {
                api::AddressHeader::XForwardedFor => AddressHeader::XForwardedFor,
                api::AddressHeader::Forwarded => AddressHeader::Forwarded,
            },
        }),
        limits: spec.limits.iter().map(|limit| compile_limit(spec.mode, limit)).collect(),
    }
}

fn mode(mode: api::Mode) -> Mode {
    match mode {
        api::Mode::Enforce => Mode::Enforce,
        api::Mode::Shadow => Mode::Shadow,
    }
}

fn compile_limit(policy_mode: api::Mode, limit: &api::Limit) -> CompiledLimit {
    let algorithm = match &limit.algorithm {
        Some(api::Algorithm { fixed_window: Some(_), .. }) => RateAlgorithm::FixedWindow,
        _ => RateAlgorithm::SlidingWindowCounter,
    };
    CompiledLimit {
        name: limit.name.clone(),
        // Shadow is the cautious word: it wins wherever it stands.
        mode: match (policy_mode, limit.mode) {
            (api::Mode::Shadow, _) | (_, Some(api::Mode::Shadow)) => Mode::Shadow,
            _ => Mode::Enforce,
        },
        matches: limit.matches.iter().map(compile_match).collect(),
        key: limit.key.iter().flat_map(|key| &key.parts).filter_map(key_part).collect(),
        on_missing: match limit.key.as_ref().map(|key| key.on_missing).unwrap_or_default() {
            api::OnMissing::Shared => OnMissing::Shared,
            api::OnMissing::Skip => OnMissing::Skip,
            api::OnMissing::Deny => OnMissing::Deny,
        },
        rates: limit
            .rates
            .iter()
            .map(|rate| CompiledRate {
                requests: u64::try_from(rate.requests).unwrap_or(0),
                period_millis: duration::period(&rate.per).map_or(1, sluice_limiter::Period::millis),
                algorithm,
            })
            .collect(),
    }
}

fn compile_match(entry: &api::Match) -> Match {
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

/// The limits in short, for a column of `kubectl get -o wide`: `per-customer 10/1m 500/1h`.
#[must_use]
pub fn summary(policy: &CompiledPolicy) -> String {
    let limits = policy.limits.iter().map(|limit| {
        let rates = limit
            .rates
            .iter()
            .map(|rate| format!("{}/{}", rate.requests, duration::format(rate.period_millis)));
        format!("{} {}", limit.name, rates.collect::<Vec<_>>().join(" "))
    });
    let text = limits.collect::<Vec<_>>().join(", ");
    match text.char_indices().nth(200) {
        Some((end, _)) => format!("{}...", &text[..end]),
        None => text,
    }
}
