//! Compiled policies, prepared once per snapshot so that nothing is parsed per request.
//!
//! - [`policy`]: a whole policy. It finds the limits that apply to a request and the client's key for each.
//! - [`limit`]: one limit; [`rate_set`]: its sets of rates.
//! - [`charge`]: what a limit charges for a request, and how the outcome corrects it.
//! - [`blobs`]: content that policies refer to by its hash.
//! - [`index`]: finds the limits that may apply to a request.
//! - `descriptors`: the descriptors of gateways' questions that a limit counts.
//! - `exceptions`: tiers, and the plans of single clients.
//! - `explanation`: how a limit treats a request, for operators.
//! - [`rejection`]: the response to a request that a limit denies; [`template`]: texts with placeholders.
//! - [`key_usage`]: how much of a limit's maximum number of keys is in use.
//! - `untrusted_proxy`: notices requests through a proxy that a policy does not trust.

pub mod blobs;
pub mod charge;
mod descriptors;
mod exceptions;
mod explanation;
pub mod index;
pub mod key_usage;
pub mod limit;
pub mod policy;
pub mod rate_set;
pub mod rejection;
pub mod template;
mod untrusted_proxy;

pub use blobs::Blobs;
pub use explanation::{Explained, NotApplied};
pub use limit::{Identified, PreparedAdaptive, PreparedKind, PreparedLimit, Refusal};
pub use policy::{Domain, PreparedPolicy};
pub use rate_set::RateSet;
