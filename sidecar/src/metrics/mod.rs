//! Everything that is counted, for `/metrics`. No metric is labelled by client.
//!
//! - `labels`: the labels of metrics.
//! - [`registry`]: the one place where the metrics of requests and policies are named.
//! - [`limit`]: the metrics of one limit; `per_limit`: values that limits keep themselves.
//! - [`latency`]: the times that the sidecar adds to requests.
//! - [`spans`]: the spans of traces.
//! - [`store`]: the metrics of the store in use.

mod labels;
mod latency;
pub(crate) mod limit;
mod per_limit;
pub(crate) mod registry;
pub(crate) mod settlements;
pub(crate) mod spans;
pub(crate) mod store;
pub(crate) mod streams;
