//! The admission webhook: adds the sidecar to pods and rejects invalid policies.
//!
//! - [`serve`]: the two endpoints, called by the API server, and their reviews. `read`: the objects.
//! - [`quota`]: whether there is room for a policy.

pub mod quota;
mod read;
pub mod serve;
