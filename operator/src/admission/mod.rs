//! The admission webhook: adds the sidecar to pods and rejects invalid policies.
//!
//! - [`serve`]: the two endpoints, called by the API server.
//! - [`inject`]: adds the sidecar to a pod. Pure.
//! - [`sidecar`]: the sidecar's container and volumes. Pure.
//! - [`config`]: the configuration of all sidecars, from the arguments.
//! - [`pod_settings`]: what the annotations of a pod change of it. [`log_filter`], `quantity`: the values that they have.
//! - [`review`]: reviews a policy. [`quota`]: whether there is room for it.

pub mod config;
pub mod inject;
pub mod log_filter;
pub mod pod_settings;
mod quantity;
pub mod quota;
pub mod review;
pub mod serve;
pub mod sidecar;
