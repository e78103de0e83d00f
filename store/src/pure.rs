//! The parts of leases and local quota that decide without I/O: values go in, and values come out. The models of the protocols call
//! them.

pub use crate::lease::Block;
pub use crate::local::{KnownUsage, LocalCounter, UnflushedUsage};
pub use crate::plan::ChargedWindow;
