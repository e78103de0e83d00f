//! Fixtures for tests that span several crates. They run real components and stop them when the test ends.
//!
//! - [`wait`]: polls until a condition holds, with a generous upper bound.
//! - [`process`]: child processes that never outlive the test.
//! - [`checks`]: an application that asks the service over HTTPS.
//! - [`client`]: HTTP clients for single requests, concurrent requests and kept connections.
//! - [`authority`]: an authority that issues certificates.
//! - [`application`]: the applications behind a sidecar, with requests that the test can hold and release.
//! - [`driver`]: programs that use one of the clients of `clients/`.
//! - [`installed`]: applications in real frameworks, and programs of the system.
//! - [`kubernetes`]: an API server with etcd, and the objects that tests create on it.
//! - [`components`]: Redis, the operator and the sidecar as processes, and a scripted session with the
//!   operator.
//! - [`node`]: a real Kubernetes node, used through kubectl and Helm.
//! - [`collector`]: an OpenTelemetry collector, and the spans that it has received.
//! - [`documentation`]: the blocks of YAML in the documentation.

pub mod application;
pub mod authority;
pub mod checks;
pub mod client;
pub mod collector;
pub mod components;
pub mod documentation;
pub mod driver;
pub mod installed;
pub mod kubernetes;
pub mod metrics_table;
pub mod node;
pub mod process;
pub mod wait;
