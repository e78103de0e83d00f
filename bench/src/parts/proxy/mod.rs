//! Sidecar and operator processes.
//!
//! - [`proxies`]: the sidecar and nginx in front of an upstream; [`load`]: that upstream, and concurrent
//!   clients.
//! - [`cpu`]: CPU time a request.
//! - [`memory`]: resident memory.

pub(super) mod cpu;
mod load;
pub(super) mod memory;
mod proxies;
