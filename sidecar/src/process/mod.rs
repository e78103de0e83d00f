//! process.

pub(crate) mod admin;
pub mod args;
pub(crate) mod cpu_quota;
pub(crate) mod drain;
pub mod logging;
pub(crate) mod memory;
pub mod run;
pub(crate) mod sidecar;
pub(crate) mod worker;
