//! Reconciles policies. The watch of policies only updates a table and queues the policy's key; everything
//! else happens here, each step once in a reconcile:
//!
//! - [`controller`]: takes keys from the queue and runs the steps in their order.
//! - [`validate`]: validates and compiles the policy. Pure.
//! - [`dereference`]: finds the pods, Secrets and ConfigMaps that the policy refers to. [`contents`]: their content as it is used.
//! - [`mod@publish`]: publishes the result to the sidecars. Neither waits nor fails.
//! - [`observe`]: finds the pods and confirmations of the policy, and the routes to these pods. May send
//!   requests to the API server. [`counted`]: the pods that count. [`absent`]: why there are none.
//! - [`mod@status`]: computes the status from these facts. Pure.
//! - [`report`]: writes the status if it has changed. [`pace`]: how often it is computed and written.
//!
//! Validating and publishing come first, so that an edit reaches the sidecars even while the API server is
//! slow or fails.
//!
//! - [`context`]: the parts of the operator that the steps use. [`facts`]: the values that pass between the steps.

pub mod absent;
pub mod contents;
pub mod context;
pub mod controller;
pub mod counted;
pub mod dereference;
pub mod facts;
pub mod observe;
pub mod pace;
pub mod publish;
pub mod report;
pub mod status;
pub mod validate;
