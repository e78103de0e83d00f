//! Validate, compile, and into the hub. An invalid edit is published as that: sidecars keep what they have.

use kube::ResourceExt as _;
use kube::api::DynamicObject;
use kube::core::Selector;
use sluice_config::{CompiledPolicy, PolicyHash};
use sluice_crds::{Violation, compile, validate};
use tokio::time::Instant;

use crate::distribution::Hub;
use crate::policy::queue::PolicyKey;

/// What became of a policy.
pub enum Outcome {
    /// It is in force as soon as the sidecars have it.
    Published {
        /// What they enforce.
        compiled: Box<CompiledPolicy>,
        /// Its hash.
        hash: PolicyHash,
        /// Since when it is published.
        since: Instant,
        /// Which pods.
        selector: Selector,
    },
    /// It is invalid.
    Invalid(Vec<Violation>),
}

/// Publishes a policy. Doing it again changes nothing.
pub fn publish(hub: &Hub, key: &PolicyKey, object: &DynamicObject) -> Outcome {
    let uid = object.uid().unwrap_or_default();
    let json = serde_json::to_value(object).unwrap_or_default();
    let valid = match validate(&json) {
        Ok(valid) => valid,
        Err(violations) => {
            hub.publish(&uid, key, None);
            return Outcome::Invalid(violations);
        }
    };
    let compiled = compile(&valid);
    let selector = valid.selector();
    match hub.publish(&uid, key, Some((selector.clone(), &compiled))) {
        Some((hash, since)) => Outcome::Published { compiled: Box::new(compiled), hash, since, selector },
        None => Outcome::Invalid(vec![Violation::new("spec", "it cannot be published")]),
    }
}
