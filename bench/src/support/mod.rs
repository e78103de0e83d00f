//! Tools that the parts share.
//!
//! - [`cores`]: one CPU core for the measured process and one for everything else; [`paths`]: where programs
//!   and files are.
//! - [`procfs`]: CPU time and memory of processes.
//! - [`child`]: child processes driven by lines of text, such as this program in another role.
//! - [`redis_server`]: a Redis process.
//! - [`keys`]: limits and client keys; [`random`]: reproducible random numbers.
//! - [`rounds`]: alternating rounds of Sluice and its peer.

pub(crate) mod child;
pub(crate) mod cores;
pub(crate) mod keys;
pub(crate) mod paths;
pub(crate) mod procfs;
pub(crate) mod random;
pub(crate) mod redis_server;
pub(crate) mod rounds;
