//! Everything that is counted, for `/metrics`. No metric is labelled by client.
//!
//! - [`registry`]: the one place where the metrics of requests and policies are named.
//! - [`limit`]: the counters of one limit.
//! - [`store`]: the numbers of the store in use.

pub(crate) mod limit;
pub(crate) mod registry;
pub(crate) mod store;
