//! The Kubernetes API types of Sluice, and what can be said about them without asking anybody: no I/O.
//!
//! - [`rate_limit_policy`]: the object. `yaml/` is generated from it.
//! - [`conditions`]: the types and reasons of its status conditions.
//! - [`duration`]: durations as Kubernetes' Gateway API writes them (GEP-2257).
//! - [`schema`]: an object against the very schema that the API server has.
//! - [`validate`]: all of what makes a policy valid; admission, the controller and `sluice check` share it.
//! - [`compile`]: from a valid policy to what sidecars enforce.
//! - [`mod@concurrency`]: the same for limits of requests at a time.
//! - [`summary`]: its limits in short.
//! - [`manifest`]: policies in YAML files, with lines in the errors.

pub mod compile;
mod concurrency;
pub mod conditions;
pub mod duration;
pub mod manifest;
#[expect(unreachable_pub, reason = "the derive of KubeSchema makes private copies of public types")]
pub mod rate_limit_policy;
pub mod schema;
pub mod summary;
pub mod validate;

pub use compile::compile;
pub use rate_limit_policy::{RateLimitPolicy, RateLimitPolicySpec, RateLimitPolicyStatus};
pub use validate::{ValidPolicy, Violation, validate};

/// The API group.
pub const GROUP: &str = "sluice.dev";
/// Namespaces with this label set to `enabled` get sidecars in their pods.
pub const INJECTION_LABEL: &str = "sluice.dev/injection";
/// Pods with this label set to `true` or `false` do or do not get one, whatever their namespace says.
pub const INJECT_LABEL: &str = "sluice.dev/inject";
/// The annotation that names the ports to capture.
pub const PORTS_ANNOTATION: &str = "sluice.dev/ports";
/// The name of the sidecar's container.
pub const SIDECAR_CONTAINER: &str = "sluice-sidecar";

/// The CRDs as YAML, each with the name of its file.
#[must_use]
pub fn crd_files() -> Vec<(&'static str, String)> {
    use kube::CustomResourceExt as _;
    let mut text = String::from("# Generated from crds/src by `make generate`. Do not edit.\n");
    // A CRD is plain data: there is nothing in it that YAML cannot say.
    text.push_str(&serde_saphyr::to_string(&RateLimitPolicy::crd()).unwrap_or_default());
    vec![("ratelimitpolicies.sluice.dev.yaml", text)]
}
