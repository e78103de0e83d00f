//! Tables of what the cluster holds, kept up to date by watches. Reading them needs no request to the API
//! server, except for a pod's containers and its addresses, which are fetched when they are needed. The tables do not depend on
//! the rest of the operator: each watch passes its changes to a closure.
//!
//! - [`watch`]: the loop that all watches share.
//! - [`own_kinds`]: watches of the kinds of Sluice, also when their definitions change.
//! - [`policies`]: policies as the API server has them, and which of them are not published yet.
//! - [`untyped`]: stores and resets as the API server has them.
//! - [`references`]: the Secrets and ConfigMaps that policies and stores refer to.
//! - [`wanted`]: what each object wants to be watched.
//! - [`pods`]: running pods, by their metadata; the containers of a single pod.
//! - [`targets`]: workloads that policies refer to, watched while one does.
//! - [`objects`]: a table of the objects of one kind, trimmed to the fields that matter.
//! - [`services`]: Services and the ports that they target. [`inference_pools`]: InferencePools, which lead to pods like Services.
//! - [`endpoint_slices`]: EndpointSlices that do not follow from the selector of a Service.
//! - [`network_policies`]: NetworkPolicies that restrict the clients of pods.
//! - [`settings`]: the settings of the installation.
//! - [`limit_ranges`]: the bounds of what containers may request.
//! - [`namespaces`]: namespaces whose pods get sidecars.

pub mod endpoint_slices;
pub mod inference_pools;
pub mod limit_ranges;
pub mod namespaces;
pub mod network_policies;
pub mod objects;
pub mod own_kinds;
pub mod pods;
pub mod policies;
pub mod references;
pub mod services;
pub mod settings;
pub mod targets;
pub mod untyped;
pub mod wanted;
pub mod watch;
