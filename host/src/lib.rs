//! What the processes of the data plane have in common, sidecars and services: they start, listen, log and end alike.
//!
//! - [`logging`], [`duration`]: parts of the command line.
//! - [`capacity`]: upper bounds that follow from the limits of the [`cgroup`].
//! - [`listen`]: binds addresses. [`guard`]: keeps a panic from ending more than a request.
//! - [`signals`], [`drain`]: the end of a process, and the phases that lead to it.

pub mod capacity;
pub mod cgroup;
pub mod drain;
pub mod duration;
pub mod guard;
pub mod listen;
pub mod logging;
pub mod signals;
