//! The data plane of Sluice: a proxy in front of one application that admits, delays or rejects each request
//! according to the active policies. It does not depend on Kubernetes.
//!
//! A request passes through these modules, from top to bottom:
//! - [`inbound`]: accepts connections, detects their protocol and refuses requests that cannot be forwarded
//!   safely.
//! - [`mod@proxy`]: handles one request, from its validation to its response.
//! - [`limit`]: matches the request to limits, checks their counters and decides.
//! - [`upstream`]: forwards the request to the application and streams the response back.
//! - [`http2`]: what both sides have in common where they speak HTTP/2.
//! - [`respond`]: rate-limit headers, and the responses that the sidecar writes itself.
//! - [`metrics`]: counters and gauges of everything above; [`clients`]: the clients that limits deny most.
//!
//! A policy passes through [`config`]: received from the operator, compiled into a snapshot, swapped in.
//!
//! [`simulation`] decides requests of the past. [`process`] starts and ends all of it. [`capacity`] bounds its workers, connections, memory and keys by the limits
//! of the [`cgroup`]. [`memory`] measures what is used of them. [`socket`] sets the options of connections, and [`clock`] tells the time. [`per_second`]
//! bounds log lines and spans that clients can cause. [`trace`] makes spans of requests.

mod capacity;
mod cgroup;
mod clients;
mod clock;
pub mod config;
mod http2;
mod inbound;
mod limit;
mod memory;
mod metrics;
mod per_second;
pub mod process;
mod proxy;
mod respond;
pub mod simulation;
mod socket;
mod trace;
mod upstream;

pub use config::publisher::Publisher;
pub use config::startup_policy::StartupPolicy;
pub use config::store_state::StoreState;
pub use inbound::guard::abort_on_other_panics;
pub use process::options::{Options, Route};
pub use process::sidecar::{BoundSidecar, Sidecar, StartError};
pub use upstream::address::{InvalidUpstream, Upstream};
pub use upstream::application::Applications;
