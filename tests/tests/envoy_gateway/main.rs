//! Envoy Gateway with two real Envoys on a real node, and the service in place of ratelimit. `tests/interop/envoy-gateway.sh` runs the
//! modules one after the other.
//!
//! - [`replacement`]: one Helm value changes, and the service answers.
//! - [`policies`]: each kind of rule of a `BackendTrafficPolicy` admits exactly what it says.
//! - [`edits`]: policies change, or are refused.
//! - [`outages`]: certificates, Envoy Gateway, the service and Redis go and come back.
//! - [`gateway`]: the installation, and routes with policies.

mod edits;
mod gateway;
mod outages;
mod policies;
mod replacement;
