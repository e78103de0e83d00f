//! Tables of what the cluster holds, kept up to date by watches. Reading them needs no request to the API
//! server, except for a pod's containers and its addresses, which are fetched when they are needed. The tables do not depend on
//! the rest of the operator: each watch passes its changes to a closure.
//!
//! - [`watch`]: the loop that all watches share, also when the definitions of Sluice's kinds change.
//! - [`policies`]: policies as the API server has them, and which of them are not published yet.
//! - [`pods`]: running pods, by their metadata; the containers of a single pod.
//! - [`wanted`]: watches that run while somebody wants what they watch.
//! - [`references`]: the Secrets and ConfigMaps that policies and stores refer to.
//! - [`targets`]: workloads that policies refer to, watched while one does.
//! - [`routes`]: Services, InferencePools, EndpointSlices and NetworkPolicies.
//! - [`namespaces`]: namespaces whose pods get sidecars, and the bounds of what containers may request.

pub mod namespaces;
pub mod pods;
pub mod policies;
pub mod references;
pub mod routes;
pub mod targets;
pub mod wanted;
pub mod watch;
