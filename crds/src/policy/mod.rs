//! The API types of a `RateLimitPolicy`. Doc comments become the text of `kubectl explain`.
//!
//! - [`spec`]: the whole policy: [`mode`], [`store_use`] and [`client_address`] apply to all its limits.
//! - [`limit`]: a limit on the rate of requests: [`matches`], [`key`], [`rate`], [`algorithm`],
//!   [`enforcement`].
//! - [`concurrency`]: a limit on concurrent requests, fixed or [`adaptive`].
//! - [`status`]: the observed state.

pub mod adaptive;
pub mod algorithm;
pub mod client_address;
pub mod concurrency;
pub mod enforcement;
pub mod key;
pub mod limit;
pub mod matches;
pub mod mode;
pub mod rate;
pub mod spec;
pub mod status;
pub mod store_use;

pub use adaptive::{Adaptive, Aimd, Gradient2, Vegas};
pub use algorithm::{
    Algorithm, Alignment, Bound, FixedWindow, Gcra, LeakyBucket, SlidingWindowCounter, SlidingWindowLog,
    TokenBucket, WarmUp,
};
pub use client_address::{AddressHeader, ClientAddress};
pub use concurrency::Concurrency;
pub use enforcement::{Capacity, Elastic, Enforcement, Hard, Soft};
pub use key::{ClientIpKey, HeaderKey, Key, KeyPart, OnMissing};
pub use limit::Limit;
pub use matches::{HeaderMatch, Match, PathMatch};
pub use mode::Mode;
pub use rate::Rate;
pub use spec::{RateLimitPolicy, RateLimitPolicySpec};
pub use status::{PodCounts, RateLimitPolicyStatus};
pub use store_use::{Consistency, OnStoreFailure};
