//! The contract between the operator, which compiles policies, and the sidecars, which enforce them. Pure
//! data and pure functions: no Kubernetes, no I/O.
//!
//! The operator builds a [`CompiledPolicy`], sends it inside a [`message`], and a sidecar turns it into a
//! [`PreparedPolicy`] that it applies to every request:
//!
//! - [`policy`]: compiled policies as they are sent, and their hashes.
//! - [`message`]: the messages between the operator and a sidecar.
//! - [`store_access`]: the store, and access to it.
//! - [`client_pages`]: questions about clients that a sidecar answers.
//! - [`prepared`]: policies ready to be applied to requests, or a [`nack`] with the reason why they cannot
//!   be.
//! - [`mod@duration`]: durations as policies write them.
//! - [`distinct`]: numbers of distinct clients.
//! - [`expression`]: conditions in a subset of CEL.
//! - [`jwt`]: tokens that identify clients.
//! - [`overrides`]: the plans of single clients.
//! - [`request`], [`path`], [`mod@matches`]: which requests a limit applies to. [`effort`] bounds what a request can cost.
//! - [`descriptor`]: what gateways say of requests, and the rules that a domain has for it.
//! - [`charged`]: the mark of a request that a gateway has asked about.
//! - `schema`: parts of the schemas of the API.
//! - [`trace_options`]: where sidecars send spans.
//! - [`exposition`]: the formats in which both serve metrics. [`occurrences`]: numbers of what users should be told about.
//! - [`client_address`], [`key`], [`key_secret`]: which client sent a request, and so which counter it uses.

pub mod charged;
pub mod client_address;
pub mod client_pages;
pub mod descriptor;
pub mod distinct;
pub mod duration;
pub mod effort;
pub mod exposition;
pub mod expression;
pub mod jwt;
pub mod key;
pub mod key_secret;
pub mod matches;
pub mod message;
pub mod nack;
pub mod occurrences;
pub mod overrides;
pub mod path;
pub mod policy;
pub mod prepared;
pub mod request;
#[cfg(feature = "schema")]
pub mod schema;
pub mod store_access;
pub mod trace_options;

pub use key_secret::KeySecret;
pub use nack::Nack;
pub use policy::{CompiledLimit, CompiledPolicy, PolicyHash};
pub use prepared::{PreparedLimit, PreparedPolicy};
pub use request::RequestAttributes;

/// Port on which a sidecar accepts the requests of its pod's first captured port. The operator chooses the
/// ports for further captured ports.
pub const PROXY_PORT: u16 = 8790;
/// Port of a sidecar's health checks and metrics.
pub const ADMIN_PORT: u16 = 8791;
/// Port of a sidecar's pages about clients, on the loopback address.
pub const DEBUG_PORT: u16 = 8793;
/// Audience of the service account tokens with which sidecars authenticate to the operator.
pub const TOKEN_AUDIENCE: &str = "sluice.dev";
/// Audience of the service-account tokens by which callers identify themselves to the service.
pub const SERVICE_AUDIENCE: &str = "sluice.dev/service";
