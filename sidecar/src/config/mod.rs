//! From the operator's messages to the snapshot that requests use.
//!
//! In the order in which a policy meets them:
//! - [`subscribe`]: the session with the operator; [`last_good`] keeps the active policies for a restart.
//! - [`fit`]: which policies can be active together.
//! - [`store_choice`], [`redis_options`], [`stores`]: the store that counts; [`limiter_handle`]: its use by requests.
//! - [`replicas`]: the pods that enforce each policy.
//! - [`publisher`]: builds snapshots and swaps them in.
//! - [`snapshot`]: the compiled configuration of the pod.

pub(crate) mod fit;
pub(crate) mod last_good;
pub(crate) mod limiter_handle;
pub(crate) mod publisher;
pub(crate) mod redis_options;
pub(crate) mod replicas;
pub(crate) mod snapshot;
pub(crate) mod store_choice;
pub(crate) mod stores;
pub mod subscribe;
