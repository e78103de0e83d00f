//! Reconciles policies. The watches only update tables and queue the keys of policies; everything else happens here, each step once in a
//! reconcile:
//!
//! - [`affected`]: keeps the tables up to date, queues the policies that a change affects, and counts their replicas.
//! - [`controller`]: takes keys from the queue, runs the steps in their order, and writes the status.
//! - [`dereference`]: finds the pods, Secrets and ConfigMaps that the policy refers to. [`contents`]: their content as it is used.
//! - [`mod@publish`]: validates the policy, which is pure, and publishes it to the sidecars, which neither waits nor fails.
//! - [`observe`]: finds the pods and confirmations of the policy, and the routes to these pods. May send
//!   requests to the API server. [`counted`]: the pods that count. [`absent`]: why there are none.
//! - [`mod@status`]: computes the status from these facts. Pure.
//! - [`pace`]: how often the status is computed and written.
//!
//! Validating and publishing come first, so that an edit reaches the sidecars even while the API server is
//! slow or fails.
//!
//! - [`context`]: the parts of the operator that the steps use. [`facts`]: the values that pass between the steps.

pub mod absent;
pub mod affected;
pub mod contents;
pub mod context;
pub mod controller;
pub mod counted;
pub mod dereference;
pub mod facts;
pub mod observe;
pub mod pace;
pub mod publish;
pub mod status;
