//! The service of Sluice: it answers gateways that ask whether a request may pass. It depends neither on Kubernetes nor on the sidecar.
//!
//! A question passes through these modules, from top to bottom:
//! - [`service`]: starts and ends all of it. `door`: what its ports answer, which [`sluice_host::serve`] serves.
//! - [`callers`]: who may ask. [`tls`]: certificates. `grpc`: the methods that can be called.
//! - [`rls`]: the door for Envoy's global rate limiting. [`sluice_engine`] decides. [`messages`]: what is sent, and its definitions.
//! - `authz` and `auth`: the doors for gateways that show a request, over gRPC and HTTP. `heads`: what both do; `head`: what they
//!   show; [`authorizer`]: another one that is asked.
//! - [`checks`]: the door for applications. `asker`: who asks. [`work`]: whose questions are next.
//! - `health`: whether it has rules. `metrics`: counters of questions. `pages`: probes, metrics and what ratelimit has; `json`: questions
//!   and answers there.
//!
//! [`compat`] takes the place of envoyproxy/ratelimit: its configuration and its variables. [`run`] is a process.
//! [`operator`] takes policies from the operator of a cluster. [`verify`] asks a service whether it answers.

mod asker;
mod auth;
pub mod authorizer;
mod authz;
pub mod callers;
pub mod checks;
pub mod compat;
mod door;
mod grpc;
mod head;
mod heads;
mod health;
mod json;
pub mod messages;
mod metrics;
pub mod operator;
mod pages;
pub mod rls;
pub mod run;
pub mod service;
pub mod tls;
pub mod verify;
pub mod work;

pub use service::{Options, Publication, Service, StartError};
pub use sluice_host::serve::ConnectionAge;
