//! Options of a Redis store: where its servers are and how to reach them. A URL or a message goes in; a
//! [`ConnectPlan`] comes out, which contains only valid values. No error ever repeats a password or a key.
//!
//! - [`store_url`]: the parser of a store's URL.
//! - [`redis_options`]: the options themselves.
//! - [`credentials`]: credentials from outside of the URL.
//! - [`validate`]: the check of all options, and the plan that follows from them.
//! - [`error`]: options that cannot be used.

mod credentials;
mod error;
mod redis_options;
mod store_url;
#[cfg(test)]
mod store_url_tests;
mod validate;
#[cfg(test)]
mod validate_tests;

pub use credentials::StoreCredentials;
pub use error::OptionsError;
pub use redis_options::{
    Calls, ClientCertificate, Endpoint, MAX_PARTITIONS, RedisOptions, Secret, Tls, Topology,
};
pub(crate) use validate::ConnectPlan;
