//! Counters and gauges of requests and connections, for `/metrics`. No metric is labelled by client.
//!
//! - `labels`: the labels of metrics.
//! - [`registry`]: the one place where they are named.
//! - [`latency`]: the times that the sidecar adds to requests.
//! - [`ended`]: connections and streams that the sidecar ends.

pub(crate) mod ended;
mod labels;
mod latency;
pub(crate) mod registry;
