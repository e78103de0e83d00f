//! A valid policy in the form in which it is distributed.

use kube::core::Selector;
use serde_json::value::RawValue;
use sluice_config::message::PublishedPolicy;
use sluice_config::policy::{Consistency, OnStoreFailure};
use sluice_config::{CompiledPolicy, PolicyHash};

/// A valid policy, encoded and hashed once for all sidecars.
#[derive(Debug, Clone)]
pub struct Publication {
    /// Selector of the pods that receive the policy.
    pub selector: Selector,
    /// The policy in JSON, and its hash.
    pub published: PublishedPolicy,
    /// Whether a sidecar needs its replica index and count to enforce the policy.
    pub needs_replicas: bool,
}

impl Publication {
    /// Encodes and hashes a policy.
    pub fn new(selector: Selector, policy: &CompiledPolicy) -> serde_json::Result<Self> {
        let json = policy.to_json();
        let published = PublishedPolicy { hash: PolicyHash::of(&json), policy: RawValue::from_string(json)? };
        let needs_replicas =
            policy.consistency != Consistency::Strict || policy.on_store_failure == OnStoreFailure::Share;
        Ok(Self { selector, published, needs_replicas })
    }
}
