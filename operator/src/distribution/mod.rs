//! The stream to sidecars and their reports.
//!
//! - [`identity`]: who asks: a token, reviewed, and the pod that it belongs to.
//! - [`hub`]: what is published, who listens, and what they have said.
//! - [`sharing`]: who shares a policy, and how long it waits for that.
//! - [`listener`]: one pod that has a stream, and for how long its word counts.
//! - [`stream`]: one sidecar's stream: debounced changes, one pending at most.
//! - [`serve`]: the two endpoints.

pub mod hub;
pub mod identity;
pub mod listener;
pub mod serve;
mod sharing;
pub mod stream;

pub use hub::{Confirmation, Hub, StoreVoice};
