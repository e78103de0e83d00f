//! Checks of everything that parses input of clients, of the operator or of Redis. Each takes arbitrary bytes and panics
//! if a promise does not hold.
//!
//! - [`forwarded`]: forwarded headers. [`path`]: the readings of a path. [`cookie`]: the key of a cookie.
//! - [`stream`]: the events of a session. [`policy`]: compiled policies.
//! - [`checks`]: checks of applications. [`descriptors`] and [`heads`]: questions of gateways. [`ratelimit`]: the rules for them.
//! - [`record`]: the values in Redis.
//! - [`request`]: whole connections to a sidecar in front of an application.
//! - [`target`]: the form of a check. [`mutate`]: random changes of seeds.
//!
//! `cargo test -p sluice-fuzz` runs them with random changes of their seeds. `make fuzz` runs them with libFuzzer, which is
//! guided by coverage.

pub mod checks;
pub mod cookie;
pub mod descriptors;
pub mod forwarded;
pub mod heads;
pub mod mutate;
pub mod path;
pub mod policy;
pub mod ratelimit;
pub mod record;
pub mod request;
pub mod stream;
pub mod target;

pub use target::Target;

/// All checks.
pub const TARGETS: &[Target] = &[
    cookie::TARGET,
    forwarded::TARGET,
    path::TARGET,
    stream::TARGET,
    policy::TARGET,
    record::TARGET,
    request::TARGET,
    checks::TARGET,
    descriptors::TARGET,
    heads::TARGET,
    ratelimit::TARGET,
];
