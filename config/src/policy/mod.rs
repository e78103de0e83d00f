//! Compiled policies, as the operator sends them to the sidecars in JSON.
//!
//! Sidecars stay in use for months, so a sidecar may be older than the operator. It ignores a field that it
//! does not know, except within an algorithm, and it nacks a policy with an algorithm that it does not know.
//!
//! - [`compiled_policy`]: the whole policy. [`mode`], [`store_use`] and [`client_address`] apply to all its
//!   limits.
//! - [`ids`]: UIDs and hashes, which identify a policy and its version.
//! - [`limit`]: one limit: [`matches`] selects requests, [`key`] identifies clients.
//! - [`rate`]: one rate of a limit, with its [`algorithm`]; [`window`] is shared by several algorithms.
//! - [`adaptive`]: a concurrency limit that each pod learns.

pub mod adaptive;
pub mod algorithm;
pub mod client_address;
pub mod compiled_policy;
pub mod ids;
pub mod key;
pub mod limit;
pub mod matches;
pub mod mode;
pub mod rate;
pub mod store_use;
pub mod window;

pub use adaptive::{AdaptiveKind, CompiledAdaptive};
pub use algorithm::{Capacity, Elastic, RateAlgorithm, SLOT_LEASE_MILLIS};
pub use client_address::{AddressHeader, ClientAddress};
pub use compiled_policy::CompiledPolicy;
pub use ids::{PolicyHash, PolicyUid};
pub use key::{KeyPart, OnMissing};
pub use limit::CompiledLimit;
pub use matches::{HeaderMatch, Match, PathMatch, ValueMatch};
pub use mode::Mode;
pub use rate::{CompiledRate, InvalidRate};
pub use store_use::{Consistency, OnStoreFailure};
pub use window::{Alignment, Bound, Window};
