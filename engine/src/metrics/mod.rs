//! Counters and gauges of decisions, for `/metrics`. No metric is labelled by client.
//!
//! - [`decisions`]: the one place where the metrics of policies and limits are named; `labels`: their labels.
//! - [`limit`]: the metrics of one limit; `per_limit`: values that limits keep themselves.
//! - `store`: the metrics of the stores in use.

mod decisions;
mod labels;
pub(crate) mod limit;
mod per_limit;
mod store;

pub(crate) use decisions::DecisionMetrics;
