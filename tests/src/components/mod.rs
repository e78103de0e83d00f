//! Components of Sluice as processes, and their counterparts.
//!
//! - [`redis`]: a Redis server. [`prometheus`]: a Prometheus server.
//! - [`operator`]: the operator.
//! - [`sidecar`]: a sidecar with the token of a pod.
//! - [`service`]: the service that gateways ask.
//! - [`session`]: a session with the operator, scripted by the test.

pub mod operator;
pub mod prometheus;
pub mod redis;
pub mod service;
pub mod session;
pub mod sidecar;

pub use operator::Operator;
pub use prometheus::Prometheus;
pub use redis::Redis;
pub use service::Service;
pub use session::{ControlClient, Session};
pub use sidecar::Sidecar;
