//! The memory store.
//!
//! - [`speed`]: time of a check, against governor and limitador.
//! - [`size`]: resident memory of a key; [`fill`]: the child process that holds the keys.

pub(super) mod fill;
pub(super) mod size;
pub(super) mod speed;
