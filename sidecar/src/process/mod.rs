//! The life of a sidecar. Arguments come in; listeners, workers and background tasks run until a signal ends
//! them.
//!
//! - [`args`]: the command line.
//! - [`run`]: a process, from its arguments to its end by a signal.
//! - [`options`]: the options of a sidecar. [`sidecar`]: starts it, and ends it gracefully.
//! - [`worker`]: a thread that serves requests. [`listener`]: accepts connections; [`serve`]: serves one of them,
//!   over HTTP/1 or HTTP/2. [`pressure`]: makes room when memory runs out.
//! - [`admin`]: the admin port.
//! - [`drain_request`]: requests to drain before a signal arrives.

pub(crate) mod admin;
pub mod args;
pub(crate) mod drain_request;
pub(crate) mod listener;
pub(crate) mod options;
pub(crate) mod pressure;
pub mod run;
mod serve;
pub(crate) mod sidecar;
pub(crate) mod worker;
