//! The fate of a new pod: whether it gets a sidecar, of which form, and why not. Pure: everything is read before
//! anything is changed.
//!
//! - [`decide`]: the decision, from the pod and the bounds of its namespace, and why a pod gets none.
//! - [`capture`]: which containers keep running, which is the sidecar, and the ports that it captures.
//! - [`resources`]: what the sidecar may use, within bounds and beside the other containers. [`quantity`]: amounts of Kubernetes.
//! - [`config`]: the configuration of all sidecars, and what the annotations of a pod change of it.
//! - [`sidecar`]: the sidecar's container and volumes. [`inject`]: the patch that adds it, or completes what others have changed.

pub mod capture;
pub mod config;
pub mod decide;
pub mod inject;
pub mod quantity;
pub mod resources;
pub mod sidecar;
