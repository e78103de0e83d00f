//! Reconciles policies. The watch of policies only updates a table and queues the policy's key; everything
//! else happens here, each step once in a reconcile:
//!
//! - [`controller`]: takes keys from the queue and runs the steps in their order.
//! - [`mod@compile`]: validates and compiles the policy. Pure.
//! - [`mod@select_pods`]: finds out which pods the policy selects.
//! - [`contents`]: resolves the Secrets and ConfigMaps that the policy refers to.
//! - [`tables`]: builds the tables of overrides; [`key_sets`]: reads public keys.
//! - [`mod@publish`]: publishes the result to the sidecars. Neither waits nor fails.
//! - [`mod@dereference`]: finds the pods and confirmations of the policy, and the routes to these pods. May send
//!   requests to the API server. [`counted`]: the pods that count.
//! - [`mod@status`]: computes the status from these facts. Pure.
//! - [`report`]: writes the status if it has changed. [`writes`]: how often. [`pace`]: how often it is computed.
//!
//! Compiling and publishing come first, so that an edit reaches the sidecars even while the API server is
//! slow or fails.
//!
//! - [`context`]: the parts of the operator that the steps use.
//! - [`concerned`]: the policies that a change of a pod concerns, by [`services_of_policies`] among others.
//! - [`facts`]: the values that pass between the steps.
//! - [`label_sets`]: pods that no selector can tell apart are treated once.

pub mod absent;
pub mod compile;
pub mod concerned;
pub mod contents;
pub mod context;
pub mod controller;
pub mod counted;
pub mod dereference;
pub mod facts;
pub mod key_sets;
pub mod label_sets;
pub mod pace;
pub mod publish;
pub mod report;
pub mod select_pods;
pub mod services_of_policies;
pub mod status;
pub mod tables;
pub mod writes;
