//! The API types of a `RateLimitPolicy`. Doc comments become the text of `kubectl explain`. Each type also
//! compiles itself: see [`mod@crate::compile`].
//!
//! A union is an enum: in YAML an object with exactly one field.
//!
//! - [`spec`]: the whole policy; [`target_ref`], [`client_address`], [`application`] and [`store_ref`] apply to all its limits.
//! - [`enforced_by`]: sidecars, the service, or both.
//! - [`selection`]: what all limits have: name, mode, matches and [`key`]; `matches` checks the conditions of
//!   [`sluice_config::matches`].
//! - [`rls`]: conditions on the descriptors of gateways' questions.
//! - `questions`: what a limit can do behind the service.
//! - [`limit`]: a limit on the rate of requests: its rates, tiers, plans, algorithm and enforcement.
//! - [`jwt`]: tokens that identify clients.
//! - [`content_ref`]: content in a Secret or ConfigMap.
//! - [`concurrency`]: a limit on concurrent requests, fixed or adaptive; `priority` checks what adaptive ones shed last.
//! - [`status`]: the observed state.

pub mod application;
pub mod client_address;
pub mod concurrency;
pub mod content_ref;
pub mod enforced_by;
pub mod jwt;
pub mod key;
pub mod limit;
mod matches;
mod priority;
mod questions;
pub mod rls;
pub mod selection;
pub mod spec;
pub mod status;
pub mod store_ref;
pub mod target_ref;

pub use application::{Application, Product};
pub use client_address::ClientAddress;
pub use concurrency::{Concurrency, ConcurrencyKind};
pub use content_ref::{ContentKind, ContentRef, OverrideSources};
pub use enforced_by::{EnforcedBy, Enforcer};
pub use jwt::Jwt;
pub use key::Key;
pub use limit::{Algorithm, Allowance, Enforcement, Limit, Plan, Rate, Tier};
pub use selection::Selection;
pub use spec::{RateLimitPolicy, RateLimitPolicySpec};
pub use status::{PodCounts, RateLimitPolicyStatus};
pub use store_ref::StoreRef;
pub use target_ref::{PodSelection, TargetKind, TargetRef};
