//! Sidecar and operator processes.
//!
//! - [`proxies`]: the sidecar and nginx in front of an upstream; [`load`]: that upstream, and concurrent
//!   clients.
//! - [`checks`]: CPU time of checks of applications.
//! - [`cpu`]: CPU time a request.
//! - [`rules`]: CPU time a request with many limits and with each kind of rule.
//! - [`tokens`]: CPU time a request whose client is a claim of a token.
//! - [`memory`]: resident memory.

pub(super) mod checks;
pub(super) mod cpu;
pub(super) mod load;
pub(super) mod memory;
pub(super) mod proxies;
pub(super) mod rules;
pub(super) mod tokens;
