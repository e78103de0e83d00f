//! Checks of everything that parses input of clients, of the operator or of Redis. Each takes arbitrary bytes and panics
//! if a promise does not hold.
//!
//! - [`forwarded`]: forwarded headers. [`path`]: the readings of a path.
//! - [`stream`]: the events of a session. [`policy`]: compiled policies.
//! - [`record`]: the values in Redis.
//! - [`request`]: whole connections to a sidecar in front of an application.
//! - [`mutate`]: random changes of seeds.
//!
//! `cargo test -p sluice-fuzz` runs them with random changes of their seeds. `make fuzz` runs them with libFuzzer, which is
//! guided by coverage.

pub mod forwarded;
pub mod mutate;
pub mod path;
pub mod policy;
pub mod record;
pub mod request;
pub mod stream;

/// A check of arbitrary bytes.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// Name of the check.
    pub name: &'static str,
    /// Panics if a promise does not hold.
    pub check: fn(&[u8]),
    /// Inputs to begin with.
    pub seeds: &'static [&'static str],
    /// Pieces that random changes insert.
    pub words: &'static [&'static str],
}

/// All checks.
pub const TARGETS: &[Target] =
    &[forwarded::TARGET, path::TARGET, stream::TARGET, policy::TARGET, record::TARGET, request::TARGET];
