//! Resets of the counters of single clients. A `CounterReset` goes to the sidecars through the hub: one of them removes the
//! counter, then all forget the client. The operator itself has no access to counters.
//!
//! - [`controller`]: passes resets on, writes their status, and deletes those that are over.
//! - [`status`]: computes the status.

pub mod controller;
pub mod status;
