//! Tables of what the cluster holds, kept up to date by watches. Reading them needs no request to the API
//! server, except for a pod's containers, which are fetched once. The tables do not depend on
//! the rest of the operator: each watch passes its changes to a closure.
//!
//! - [`watch`]: the loop that all watches share.
//! - [`policies`]: policies as the API server has them, and which of them are not published yet.
//! - [`pod`], [`pods`]: running pods, by their metadata; the containers of a single pod.
//! - [`services`]: Services and the ports that they target.
//! - [`settings`]: the settings of the installation.
//! - [`namespaces`]: namespaces whose pods get sidecars.

pub mod namespaces;
pub mod pod;
pub mod pods;
pub mod policies;
pub mod services;
pub mod settings;
pub mod watch;
