//! Everything that is counted, for `/metrics`. No metric is labelled by client.
//!
//! - [`registry`]: the one place where the metrics of requests and policies are named.
//! - [`limit`]: the metrics of one limit; `keys`: the part of its `maxKeys` that is in use.
//! - [`store`]: the metrics of the store in use.

mod keys;
pub(crate) mod limit;
pub(crate) mod registry;
pub(crate) mod store;
