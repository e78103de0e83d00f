//! What tests of several rooms need: real parts, started and ended with the test.
//!
//! - [`process`]: child processes that never outlive the test, whatever ends it.
//! - [`control_plane`]: a real API server with etcd, one a test binary.
//! - [`cluster`]: what tests make on it: namespaces, pods without a kubelet, policies, tokens.
//! - [`redis`]: a real Redis.
//! - [`operator`]: the operator as a process.
//! - [`sidecar`]: the sidecar as a process.
//! - [`control`]: a sidecar's side of the stream, for sidecars that misbehave.
//! - [`node`]: a real node, by the commands that a user types.
//! - [`load`]: many requests at once, each on a connection of its own.
//! - [`wait`]: wait for a condition, with a generous bound.

pub mod cluster;
pub mod control;
pub mod control_plane;
pub mod load;
pub mod node;
pub mod operator;
pub mod process;
pub mod redis;
pub mod sidecar;
pub mod wait;
