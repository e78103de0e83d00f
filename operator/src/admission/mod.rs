//! The admission webhook: adds the sidecar to pods and rejects invalid policies.
//!
//! - [`serve`]: the two endpoints, called by the API server. [`read`]: their objects.
//! - [`review`]: reviews a policy. [`quota`]: whether there is room for it.

pub mod quota;
mod read;
pub mod review;
pub mod serve;
