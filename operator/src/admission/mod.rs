//! The webhook: pods get their sidecar, bad policies are refused with the field's path.
//!
//! - [`serve`]: the two endpoints, called by the API server.
//! - [`capture`]: which ports of a pod the sidecar takes over.
//! - [`inject`]: the pod with its sidecar. Pure.
//! - [`validate`]: a policy's verdict. Pure.

pub mod capture;
pub mod inject;
pub mod serve;
pub mod validate;
