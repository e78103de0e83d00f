//! Receives policies from the operator and makes them the snapshot that requests use.
//!
//! In the order in which a policy meets them:
//! - [`subscribe`]: the session with the operator; [`last_good`] keeps the active policies for a restart.
//! - [`fit`]: which policies can be active together.
//! - [`stores`], [`named_store`], [`store_state`]: the stores in use, by name, and their states; [`limiter_handle`]: the
//!   limiter in front of a store, and its users.
//! - [`replicas`]: the pods that enforce each policy.
//! - [`resets`]: clients whose counters are reset.
//! - [`publisher`]: builds snapshots and swaps them in.
//! - [`snapshot`]: the compiled configuration of the pod. [`startup_policy`]: what applies before the first one.

pub(crate) mod fit;
pub(crate) mod last_good;
pub(crate) mod limiter_handle;
mod named_store;
pub(crate) mod publisher;
pub(crate) mod replicas;
pub(crate) mod resets;
pub(crate) mod snapshot;
pub mod startup_policy;
pub(crate) mod store_state;
pub(crate) mod stores;
pub mod subscribe;
