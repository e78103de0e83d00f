//! The contract between the operator, which compiles policies, and the sidecars, which enforce them. No Kubernetes
//! and no I/O.
//!
//! - [`policy`]: a compiled policy as it travels, and its hash.
//! - [`rate`]: one rate of it, and the limiter's rate that it means.
//! - [`concurrency`]: limits of requests at a time.
//! - [`prepared`]: the same, made ready to be asked about requests; a policy that cannot be is refused with a reason.
//! - [`path`], [`matcher`]: which requests a limit is about.
//! - [`client_address`], [`key`]: whose request it is.
//! - [`message`]: what is said on the stream and in reports.

pub mod client_address;
pub mod concurrency;
pub mod key;
pub mod matcher;
pub mod message;
pub mod path;
pub mod policy;
pub mod prepared;
pub mod rate;

pub use key::KeySecret;
pub use policy::{CompiledLimit, CompiledPolicy, PolicyHash};
pub use prepared::{Nack, PreparedLimit, PreparedPolicy, RequestAttributes};

/// Where a captured port listens in the sidecar: the first port; each further captured port the next but one that
/// is free.
pub const PROXY_PORT: u16 = 8790;
/// The sidecar's admin port.
pub const ADMIN_PORT: u16 = 8791;
/// The audience of the tokens that sidecars show to the operator.
pub const TOKEN_AUDIENCE: &str = "sluice.dev";
