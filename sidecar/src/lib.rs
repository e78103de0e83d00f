//! The data plane of Sluice: a proxy in front of one application that admits, delays or rejects each request
//! according to the active policies. It does not depend on Kubernetes.
//!
//! A request passes through these modules, from top to bottom:
//! - [`process`]: starts and ends all of it; accepts connections and serves them.
//! - [`inbound`]: detects the protocol of a connection and refuses requests that cannot be forwarded safely.
//! - [`mod@proxy`]: handles one request, from its validation to its response. [`sluice_engine`] decides it.
//! - [`upstream`]: forwards the request to the application and streams the response back.
//! - [`respond`]: the responses that the sidecar writes itself.
//! - [`http2`]: what both sides have in common where they speak HTTP/2.
//! - [`metrics`]: counters and gauges of everything above.
//!
//! [`memory`] measures what is used of the bounds that [`sluice_host::capacity`] sets. [`socket`] sets the options of connections, and
//! [`clock`] tells the time.

mod clock;
mod http2;
mod inbound;
mod memory;
mod metrics;
pub mod process;
mod proxy;
mod respond;
mod socket;
mod upstream;

pub use process::options::{Options, Route};
pub use process::sidecar::{BoundSidecar, Sidecar, StartError};
pub use sluice_engine::{Publisher, StartupPolicy};
pub use sluice_host::guard::abort_on_other_panics;
pub use upstream::address::{InvalidUpstream, Upstream};
pub use upstream::application::Applications;
