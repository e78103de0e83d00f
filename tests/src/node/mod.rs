//! A real Kubernetes node, started by `tests/node/node.sh up` and used through the commands that a user
//! types. `KUBECONFIG` and `PATH` come from `tests/node/node.sh env`.
//!
//! - [`command`]: runs kubectl, Helm and other programs.
//! - [`install`](mod@install): installs Sluice with Helm.
//! - [`shop`]: a namespace with applications and policies.
//! - [`load`]: clients that send requests while something happens to an application.

pub mod command;
pub mod install;
pub mod load;
pub mod shop;

pub use command::{apply, has_native_sidecars, kubectl, run, try_apply};
pub use install::{SYSTEM, install, install_previous, upgrade};
pub use load::Load;
pub use shop::Shop;
