//! The service of Sluice: it answers gateways that ask whether a request may pass. It depends neither on Kubernetes nor on the sidecar.
//!
//! A question passes through these modules, from top to bottom:
//! - [`service`]: starts and ends all of it; its workers accept connections by `accept`.
//! - [`callers`]: who may ask. [`tls`]: certificates. `grpc`: a connection, and the methods that it can call; `incoming` bounds
//!   what it takes.
//! - [`rls`]: the door for Envoy's global rate limiting. [`sluice_engine`] decides. [`messages`]: what is sent, and its definitions.
//! - [`checks`]: the door for applications, which `http` serves.
//! - `health`: whether it has rules. `metrics`: counters of questions. `pages`: what is served over HTTP/1, by
//!   `page_server`; `json`: questions and answers there.
//!
//! [`compat`] takes the place of envoyproxy/ratelimit: its configuration and its variables. [`run`] is a process.
//! [`operator`] takes policies from the operator of a cluster. [`verify`] asks a service whether it answers.

mod accept;
pub mod callers;
pub mod checks;
pub mod compat;
mod grpc;
mod health;
mod http;
mod incoming;
mod json;
pub mod messages;
mod metrics;
pub mod operator;
mod page_server;
mod pages;
pub mod rls;
pub mod run;
pub mod service;
pub mod tls;
pub mod verify;

pub use grpc::ConnectionAge;
pub use service::{Options, Publication, Service, StartError};
