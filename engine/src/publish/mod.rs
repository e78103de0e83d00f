//! Makes policies the snapshot that requests use.
//!
//! - [`fit`]: which policies can be active together.
//! - [`replicas`]: the pods that enforce each policy.
//! - [`publisher`]: builds snapshots and swaps them in.

pub(crate) mod fit;
pub(crate) mod publisher;
mod replicas;
