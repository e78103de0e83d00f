//! The cluster that a command asks, with the rights of the user of the kubeconfig.
//!
//! - [`args`]: the flags of all such commands.
//! - [`sidecars`]: finds sidecars; [`ask`]: asks one for a page.

pub(crate) mod args;
pub(crate) mod ask;
pub(crate) mod sidecars;
