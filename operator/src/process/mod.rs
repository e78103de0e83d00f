//! The process: starts the parts of the operator, connects them and stops them.
//!
//! - [`mod@run`]: serves admission and waits for the lease. Or verifies an installation.
//! - [`leader`]: serves sidecars and reconciles policies while the lease is held.
//! - `ports`: the ports, what they bound, and probes and metrics.

pub mod leader;
mod ports;
pub mod run;
