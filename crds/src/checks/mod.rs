//! Everything that types need to check and compile themselves.
//!
//! - [`installation`]: what the installation sets for all policies.
//! - [`field`]: the place of a value in the spec, where problems are reported.
//! - [`client_warnings`]: limits that a client can evade, or that count several clients as one, and rates that never deny a request.

pub(crate) mod client_warnings;
pub(crate) mod field;
pub mod installation;
