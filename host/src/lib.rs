//! The parts that all processes of the data plane have, sidecars and services: they start, listen, log and end alike.
//!
//! - [`logging`], [`duration`]: parts of the command line.
//! - [`capacity`]: upper bounds that follow from the limits of the cgroup.
//! - [`worker`]: runtimes and threads. [`listen`]: addresses, and how they are bound. [`guard`]: keeps a panic from ending more than
//!   a request.
//! - [`serve`]: how a port is served, and what it bounds.
//! - [`signals`], [`drain`]: what signals do; the end of a process, and the phases that lead to it.

pub mod capacity;
pub mod drain;
pub mod duration;
pub mod guard;
pub mod listen;
pub mod logging;
pub mod serve;
pub mod signals;
pub mod worker;
