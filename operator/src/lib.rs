//! The operator of Sluice: distributes `RateLimitPolicy` objects to the sidecars that enforce them, and
//! reports in their status whether all sidecars do.
//!
//! - [`args`], [`metrics`]: the command line, and all metrics.
//! - [`process`]: starts, connects and stops the parts.
//! - [`leadership`]: one replica leads; it serves sidecars and writes status.
//! - [`certificates`]: the operator's own certificates and their trust.
//! - [`store`]: access to the store that the sidecars use.
//! - [`admission`]: the webhook, which adds sidecars to pods and rejects invalid policies.
//! - [`resets`]: resets of the counters of single clients.
//! - [`events`]: what the operator tells about policies and workloads.
//! - [`webhooks`]: whether the API server calls the webhook.
//! - [`injection`]: whether a pod gets a sidecar, and which.
//!
//! A policy passes through these, in this order:
//!
//! - [`cluster`]: tables of policies, pods, Services and namespaces, kept up to date by watches.
//! - [`names`], [`queue`]: the policies to reconcile, and their pods.
//! - [`reconcile`]: compiles and publishes a policy, then writes its status.
//! - [`distribution`]: sends published policies to the sidecars and takes their reports.

#![allow(unreachable_pub, reason = "nobody else uses the modules of a program, so `pub` means to each other")]

mod admission;
mod args;
mod certificates;
mod cluster;
mod conditions;
mod distribution;
mod events;
mod injection;
mod leadership;
mod locks;
mod metrics;
mod names;
mod process;
mod queue;
mod reconcile;
mod resets;
mod store;
mod webhooks;

pub use crate::process::run::verify;
pub use args::{Args, Command};
pub use process::run::run;
