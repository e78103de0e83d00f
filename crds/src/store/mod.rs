//! The API types of a `RateLimitStore`, and the options that sidecars connect with.
//!
//! - [`spec`]: the whole store.
//! - [`servers`]: the servers of Redis.
//! - [`status`]: the observed state.

pub mod servers;
pub mod spec;
pub mod status;

pub use servers::Servers;
pub use spec::{Access, CompiledStore, RateLimitStore, RateLimitStoreSpec, SecretRef, TlsConnection};
pub use status::{PasswordEpoch, RateLimitStoreStatus, SidecarCounts};
