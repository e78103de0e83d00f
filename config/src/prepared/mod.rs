//! Compiled policies, prepared once per snapshot so that nothing is parsed per request.
//!
//! - [`policy`]: a whole policy. It finds the limits that apply to a request and the client's key for each, and notices requests through
//!   a proxy that the policy does not trust.
//! - [`limit`]: one limit; [`rate_set`]: its sets of rates.
//! - [`charge`]: what a limit charges for a request, and how the outcome corrects it.
//! - [`index`]: finds the limits that may apply to a request, or to a descriptor of a gateway's question.
//! - [`exceptions`]: tiers, and the plans of single clients, whose content policies refer to by its hash.
//! - [`rejection`]: the response to a request that a limit denies.
//! - [`key_usage`]: how much of a limit's maximum number of keys is in use.

pub mod charge;
pub mod exceptions;
pub mod index;
pub mod key_usage;
pub mod limit;
pub mod policy;
pub mod rate_set;
pub mod rejection;

pub use self::exceptions::Blobs;
pub use limit::{Explained, Identified, NotApplied, PreparedAdaptive, PreparedKind, PreparedLimit, Refusal};
pub use policy::{Domain, PreparedPolicy};
pub use rate_set::RateSet;
