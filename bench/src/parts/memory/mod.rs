//! The memory store.
//!
//! - [`size`]: resident memory of a key; [`fill`]: the child process that holds the keys.

pub(super) mod fill;
pub(super) mod size;
