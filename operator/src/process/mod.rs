//! The process: starts the parts of the operator, connects them and stops them.
//!
//! - [`mod@run`]: serves admission and waits for the lease.
//! - [`leader`]: serves sidecars and reconciles policies while the lease is held.
//! - `hand_over`: gives the sidecars to the next leader.
//! - [`verify`]: verifies an installation, in place of running the operator.
//! - [`control_port`]: the connections of sidecars. [`admin`]: probes and metrics.

pub mod admin;
mod control_port;
mod hand_over;
pub mod leader;
pub mod run;
pub mod verify;
