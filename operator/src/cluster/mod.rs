//! What is known of the cluster, from watches: pods by their metadata only, Services, and which namespaces get
//! sidecars. Reads are from memory; a pod's containers are fetched once, when they matter.
//!
//! - [`pods`]: pods, and what a single one is made of.
//! - [`services`]: where Services lead.
//! - [`namespaces`]: namespaces with sidecars.
//! - [`follow`]: one loop for all watches.

pub mod follow;
pub mod namespaces;
pub mod pods;
pub mod services;

pub use pods::{Pod, PodFacts, Pods};
pub use services::{Service, ServicePort, Services};
