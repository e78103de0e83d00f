//! The operator of Sluice: from `RateLimitPolicy` objects to sidecars that enforce them, and back to status.
//!
//! - [`args`], [`context`], [`mod@run`]: what it is told, what its parts share, how they start and stop.
//! - [`policy`]: a policy's way: watch, dereference, validate, publish, report.
//! - [`cluster`]: what is known of pods, Services and namespaces, from watches.
//! - [`admission`]: the webhook: pods get their sidecar, bad policies are refused.
//! - [`distribution`]: the stream to sidecars and their reports.
//! - [`store`]: access to Redis, and the embedded Redis's password.
//! - [`certificates`], [`trust`]: the operator's own authority, and who is told of it.
//! - [`leadership`]: one replica serves streams and writes status.
//! - [`admin`], [`metrics`]: `/livez /readyz /metrics`.

pub mod admin;
pub mod admission;
pub mod args;
pub mod certificates;
pub mod cluster;
pub mod context;
pub mod distribution;
pub mod leadership;
pub mod metrics;
pub mod policy;
pub mod run;
pub mod store;
pub mod trust;

pub use args::Args;
pub use run::run;
