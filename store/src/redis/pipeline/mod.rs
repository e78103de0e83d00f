//! The pipeline to one server. Operations go in through a [`Node`]; its worker gathers them into batches,
//! calls the script and responds to the callers. While one call is in flight, the next batch gathers.
//!
//! - [`node`]: the handle of a server for the rest of the store.
//! - [`queue`]: the queue between the node and its worker.
//! - [`intake`]: the worker's end of the queue, and the batches that it forms.
//! - [`script_choice`]: the script for each operation.
//! - [`write`](mod@write): script calls in flight.
//! - [`worker`]: the task that connects, calls the script and responds.
//! - [`settings`]: values that all workers of a store share.
//! - [`circuit`]: the health of one server. [`failure_log`]: which of its failures are logged.
//! - [`metrics`]: counts and durations of the whole store.

mod circuit;
mod failure_log;
mod intake;
mod metrics;
mod node;
mod queue;
mod script_choice;
mod settings;
mod worker;
mod write;

pub(crate) use metrics::MetricsRecorder;
pub use metrics::{LATENCY_BOUNDS_US, RedisMetrics};
pub(crate) use node::Node;
pub(crate) use queue::{QueueItem, RepeatedBatch};
pub(crate) use settings::{PipelineSettings, RedirectHandler};
pub(crate) use write::ScriptCall;
