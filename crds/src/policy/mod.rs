//! The API types of a `RateLimitPolicy`. Doc comments become the text of `kubectl explain`. Each type also
//! compiles itself: see [`mod@crate::compile`].
//!
//! A union is an enum: in YAML an object with exactly one field.
//!
//! - [`spec`]: the whole policy, and its observed state; [`target_ref`]: what it refers to; [`application`] applies to all its limits.
//! - [`selection`]: what all limits have: name, mode, conditions on requests and descriptors, and [`key`].
//! - `questions`: what a limit can do behind the service.
//! - [`limit`]: a limit on the rate of requests: its rates, tiers, plans, algorithm and enforcement.
//! - [`concurrency`]: a limit on concurrent requests, fixed or adaptive.

pub mod application;
pub mod concurrency;
pub mod key;
pub mod limit;
mod questions;
pub mod selection;
pub mod spec;
pub mod target_ref;

pub use self::key::{ClientAddress, Jwt};
pub use self::spec::{PodCounts, RateLimitPolicyStatus};
pub use self::target_ref::{ContentKind, ContentRef, EnforcedBy, Enforcer, OverrideSources, StoreRef};
pub use application::{Application, Product};
pub use concurrency::{Concurrency, ConcurrencyKind};
pub use key::Key;
pub use limit::{Algorithm, Allowance, Enforcement, Limit, Plan, Rate, Tier};
pub use selection::Selection;
pub use spec::{RateLimitPolicy, RateLimitPolicySpec};
pub use target_ref::{PodSelection, TargetKind, TargetRef};
