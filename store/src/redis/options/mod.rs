//! Options of a Redis store: where its servers are and how to reach them. A URL or a struct goes in; a
//! [`ConnectPlan`] comes out, which contains only valid values. No error ever repeats a password or a key.
//!
//! - [`redis_options`]: the options themselves.
//! - [`store_url`]: options from a single URL.
//! - [`server_url`]: the URL of one server.
//! - [`validate`]: the check of all options, and the plan that follows from them.
//! - [`error`]: options that cannot be used.

mod error;
mod redis_options;
mod server_url;
mod store_url;
#[cfg(test)]
mod store_url_tests;
mod validate;
#[cfg(test)]
mod validate_tests;

pub use error::OptionsError;
pub use redis_options::{ClientCertificate, RedisOptions, Secret, Topology};
pub(crate) use validate::ConnectPlan;
