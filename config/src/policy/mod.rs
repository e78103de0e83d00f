//! Compiled policies, as the operator sends them to the sidecars in JSON.
//!
//! A compiled policy means the same to every sidecar that applies it. A sidecar may be older than the operator,
//! so it nacks a policy with a field or a name that it does not know, at any depth. An absent field means that
//! a feature is not used, and that meaning never changes. Only [`Hints`] may hold fields that a sidecar ignores.
//!
//! - [`compiled_policy`]: the whole policy; its [`mode`] and its use of the store apply to all its limits.
//! - [`ids`]: UIDs and hashes, which identify a policy, its version, and content that is sent apart from it.
//! - [`limit`]: one limit. [`matches`](crate::matches) selects requests, [`key`](crate::key) identifies
//!   clients, by [tokens](crate::jwt) too, and its [`LimitKind`] says how many requests it admits, in general, in each
//!   [`tier`] and with each plan.
//! - [`cost`]: what a request costs, and which outcomes count.
//! - [`on_limit`]: what else happens to a request that a limit denies; [`reject`]: the response to a request that a limit denies.
//! - [`adaptive`]: a concurrency limit that each pod learns.

pub mod adaptive;
pub mod compiled_policy;
pub mod cost;
pub mod ids;
pub mod limit;
pub mod mode;
pub mod on_limit;
pub mod reject;
pub mod tier;

pub use adaptive::{Adaptive, AdaptiveLimit, Aimd, MAX_PRIORITIES, MAX_RESERVES, Priority};
pub use compiled_policy::{AmbiguousPaths, CompiledPolicy, DEFAULT_STORE, Hints};
pub use cost::{Cost, CountWhen, GrpcStatus, RequestCost, ResponseCost, ResponseCostSource, StatusCodes};
pub use ids::{BlobHash, PolicyHash, PolicyUid};
pub use limit::{
    Boosted, Capacity, CompiledLimit, DEFAULT_MAX_KEYS, LimitKind, Rates, SLOT_LEASE_MILLIS, Slots,
};
pub use mode::Mode;
pub use on_limit::{Block, Mark, OnLimit, Queue, QueueOrder};
pub use reject::{Body, Empty, Envelope, Header, Reject, ResetFormat, StatusHeaders, Template};
pub use sluice_store::{Consistency, OnStoreFailure};
pub use tier::{Allowance, Plan, Tier};
