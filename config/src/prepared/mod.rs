//! Compiled policies, prepared once per snapshot so that nothing is parsed per request.
//!
//! - [`policy`]: a whole policy. It finds the limits that apply to a request and the client's key for each.
//! - [`limit`]: one limit.

pub mod limit;
pub mod policy;

pub use limit::{BoostedRates, PreparedKind, PreparedLimit};
pub use policy::PreparedPolicy;
