//! The Kubernetes API types of Sluice and the pure functions on them. No I/O.
//!
//! A policy arrives as YAML or JSON and leaves as a compiled policy for the sidecars:
//!
//! - [`manifest`]: reads policies from YAML files and reports problems with their lines.
//! - [`schema`]: checks an object against the schema of the CRD.
//! - [`policy`], [`store`], [`reset`]: the API types.
//! - [`checks`]: everything that they need to check themselves.
//! - [`mod@compile`]: the compiled policy of an object, or all its [`Violation`]s.
//! - `expression`: conditions in a subset of CEL.
//! - [`overrides`]: the plans of single clients, from the lines of Secrets and ConfigMaps.
//! - [`summary`]: describes a compiled policy in one line.
//! - [`conditions`]: types and reasons of status conditions.
//! - [`crd`]: writes the CRDs as YAML.
//! - [`mod@reference`]: describes every field for people.

pub mod checks;
pub mod compile;
pub mod conditions;
pub mod crd;
mod expression;
pub mod manifest;
pub mod overrides;
#[expect(unreachable_pub, reason = "the derive of KubeSchema makes private copies of public types")]
pub mod policy;
pub mod reference;
#[expect(unreachable_pub, reason = "the derive of KubeSchema makes private copies of public types")]
pub mod reset;
pub mod schema;
#[expect(unreachable_pub, reason = "the derive of KubeSchema makes private copies of public types")]
pub mod store;
pub mod summary;

pub use checks::field::{Violation, ViolationKind};
pub use checks::installation::Installation;
pub use compile::{Compiled, compile, compile_store};
pub use crd::crd_files;
pub use expression::EXPRESSION_THREAD;
pub use policy::{RateLimitPolicy, RateLimitPolicySpec, RateLimitPolicyStatus};
pub use reference::reference;
pub use reset::{CounterReset, CounterResetSpec, CounterResetStatus};
pub use store::{CompiledStore, RateLimitStore, RateLimitStoreSpec, RateLimitStoreStatus};

/// API group of Sluice.
pub const GROUP: &str = "sluice.dev";
/// Namespace label. With the value `enabled`, pods of the namespace get sidecars.
pub const INJECTION_LABEL: &str = "sluice.dev/injection";
/// Pod label. With the value `true` or `false`, the pod does or does not get a sidecar, whatever the label of
/// its namespace is.
pub const INJECT_LABEL: &str = "sluice.dev/inject";
/// Pod annotation that lists the names of the ports to capture.
pub const PORTS_ANNOTATION: &str = "sluice.dev/ports";
/// Pod annotation that notes what the webhook has changed in the pod.
pub const INJECTED_ANNOTATION: &str = "sluice.dev/injected";
/// Service annotation. With the value [`IGNORE_BYPASS`], status reports no bypass by this Service.
pub const BYPASS_ANNOTATION: &str = "sluice.dev/bypass";
/// Value of [`BYPASS_ANNOTATION`].
pub const IGNORE_BYPASS: &str = "Ignore";
/// Label of the pods of the service, in the operator's namespace.
pub const SERVICE_LABEL: (&str, &str) = ("sluice.dev/component", "service");
/// Name of the sidecar's container.
pub const SIDECAR_CONTAINER: &str = "sluice-sidecar";
