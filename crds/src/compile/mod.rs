//! Translates a valid policy into the compiled policy that sidecars enforce. Equal specs give equal compiled
//! policies, with equal hashes.
//!
//! - [`limit`]: mode, matches and key, which all limits have.
//! - [`rate`]: the rates of a limit, with their algorithm and enforcement.
//! - [`concurrency`]: limits on concurrent requests.

pub(crate) mod concurrency;
mod limit;
pub(crate) mod rate;

use sluice_config::policy::{AddressHeader, ClientAddress, CompiledPolicy, Consistency, OnStoreFailure};

use self::concurrency::compile_concurrency;
use self::limit::{compile_limit, compile_mode};
use self::rate::compile_rate;
use crate::policy as api;
use crate::validate::ValidPolicy;

/// Compiles a valid policy.
#[must_use]
pub fn compile(valid: &ValidPolicy) -> CompiledPolicy {
    let policy = &valid.policy;
    let spec = &policy.spec;
    let limits = spec.limits.iter().map(|limit| {
        let rates = limit.rates.iter().map(|rate| compile_rate(limit, rate)).collect();
        compile_limit(spec.mode, &limit.name, limit.mode, &limit.matches, limit.key.as_ref(), rates)
    });
    let concurrency = spec.concurrency.iter().map(|limit| {
        let rates = vec![compile_concurrency(limit)];
        compile_limit(spec.mode, &limit.name, limit.mode, &limit.matches, limit.key.as_ref(), rates)
    });
    CompiledPolicy {
        namespace: policy.metadata.namespace.clone().unwrap_or_default(),
        name: policy.metadata.name.clone().unwrap_or_default(),
        mode: compile_mode(spec.mode),
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
        limits: limits.chain(concurrency).collect(),
    }
}
