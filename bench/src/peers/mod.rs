//! Implementations that Sluice is compared with. nginx, the peer of the sidecar, is among the proxies of
//! `parts::peers`.
//!
//! - [`limitador`]: the crate of that name, in a child process.
//! - [`multi_incrby`]: the usual Redis commands without a script.

pub(crate) mod limitador;
pub(crate) mod multi_incrby;
