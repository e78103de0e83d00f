//! The life of a sidecar. Arguments come in; listeners, workers and background tasks run until a signal ends
//! them.
//!
//! - [`args`], [`logging`]: the command line and the logs.
//! - [`run`]: a process, from its arguments to its end by a signal.
//! - [`options`]: the options of a sidecar. [`sidecar`]: starts it, and ends it gracefully.
//! - [`worker`]: a thread that serves requests. [`pressure`]: makes room when memory runs out.
//! - [`admin`]: the admin port.
//! - [`drain_request`]: requests to drain before a signal arrives.

pub(crate) mod admin;
pub mod args;
pub(crate) mod drain_request;
pub mod logging;
pub(crate) mod options;
pub(crate) mod pressure;
pub mod run;
pub(crate) mod sidecar;
pub(crate) mod worker;
