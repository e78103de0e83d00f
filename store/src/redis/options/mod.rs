//! Options of a Redis store: where its servers are and how to reach them. A URL or a message goes in.
//! [`connect`](super::connect) checks the values. No error ever repeats a password or a key.
//!
//! - [`store_url`]: the parser of a store's URL.
//! - [`redis_options`]: the options themselves.
//! - [`credentials`]: credentials from outside of the URL.
//! - [`error`]: options that cannot be used.

mod credentials;
mod error;
mod redis_options;
mod store_url;
#[cfg(test)]
mod store_url_tests;

pub use credentials::StoreCredentials;
pub use error::OptionsError;
pub use redis_options::{
    Calls, ClientCertificate, Endpoint, MAX_PARTITIONS, RedisOptions, Secret, Tls, Topology,
};
