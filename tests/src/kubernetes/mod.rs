//! A Kubernetes API server without a kubelet, and the objects that tests create on it.
//!
//! - [`namespace`]: namespaces, pods, Services, policies and tokens.
//! - [`control_plane`]: the API server with etcd, one per test binary.

pub mod control_plane;
pub mod namespace;

pub use control_plane::ControlPlane;
pub use namespace::{TestNamespace, wait_for_store};
