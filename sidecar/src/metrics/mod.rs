//! Counters and gauges of requests, connections and spans, for `/metrics`. No metric is labelled by client.
//!
//! - `labels`: the labels of metrics.
//! - [`registry`]: the one place where they are named.
//! - [`latency`]: the times that the sidecar adds to requests.
//! - [`spans`]: the spans of traces. [`ended`]: connections and streams that the sidecar ends.

pub(crate) mod ended;
mod labels;
mod latency;
pub(crate) mod registry;
pub(crate) mod spans;
