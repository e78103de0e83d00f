//! `sluice run`: the sidecar in this process, in front of one application, with the policies of a file.
//!
//! - [`args`]: the arguments; those of the store are in [`store`].
//! - [`policy_file`]: the file, read again whenever it changes.
//! - [`store`]: the store that the counters live in.
//! - [`serve`]: serves requests until a signal arrives.

mod args;
pub(crate) mod policy_file;
mod serve;
mod store;

pub(crate) use self::args::Args;
pub(crate) use self::serve::run;
#[cfg(any(feature = "cluster", feature = "serve"))]
pub(crate) use self::store::StoreArgs;
