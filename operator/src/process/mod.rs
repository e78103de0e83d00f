//! The process: starts the parts of the operator, connects them and stops them.
//!
//! - [`mod@run`]: serves admission and waits for the lease.
//! - [`leader`]: serves sidecars and reconciles policies while the lease is held.
//! - `hand_over`: gives the sidecars to the next leader.
//! - [`verify`]: verifies an installation, in place of running the operator.
//! - `ports`: the ports, and what they bound. [`admin`]: probes and metrics.

pub mod admin;
mod hand_over;
pub mod leader;
mod ports;
pub mod run;
pub mod verify;
