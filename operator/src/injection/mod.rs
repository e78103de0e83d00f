//! The fate of a new pod: whether it gets a sidecar, of which form, and why not. Pure: everything is read before
//! anything is changed.
//!
//! - [`decide`]: the decision, from the whole pod and the bounds of its namespace. [`skip`]: why a pod gets none.
//! - [`parts`]: which parts of a new pod are read.
//! - [`inject`]: the patch that adds the sidecar. [`sidecar`]: the sidecar's container and volumes.
//! - [`again`]: the patch of a pod that others have changed after the sidecar was added. [`note`]: what was changed before.
//!   [`changes`]: the operations of both patches.
//! - [`containers`]: which containers keep running, and which is the sidecar.
//! - [`capture`]: the ports that the sidecar captures. [`platform`]: pods that run on Windows, or without the cluster's DNS.
//! - [`resources`]: what the sidecar may use, within [`bounds`] and beside the other containers ([`totals`]). [`quantity`]:
//!   amounts of Kubernetes.
//! - [`config`]: the configuration of all sidecars. [`pod_settings`]: what the annotations of a pod change of it.
//!   [`log_filter`]: a value that they have.

pub mod again;
pub mod bounds;
pub mod capture;
pub mod changes;
pub mod config;
pub mod containers;
pub mod decide;
pub mod inject;
pub mod log_filter;
pub mod note;
pub mod parts;
pub mod platform;
pub mod pod_settings;
pub mod quantity;
pub mod resources;
pub mod sidecar;
pub mod skip;
pub mod totals;
