//! A policy's way through the operator.
//!
//! - [`watch`]: policies as the API server has them; every edit is published at once.
//! - [`queue`]: which policies to look at again, and when.
//! - [`reconcile`]: the table of contents: dereference, validate, publish, report.
//! - [`dereference`]: the pods, Services and confirmations that a policy is about. Needs the cluster.
//! - [`publish`]: validate, compile, and into the hub. Pure but for the hub.
//! - [`status`]: what all of that means. Pure.
//! - [`report`]: writes the status, if it changed.

pub mod dereference;
pub mod publish;
pub mod queue;
pub mod reconcile;
pub mod report;
pub mod status;
pub mod watch;
