//! Stores: which servers hold the counters, and how sidecars reach them.
//!
//! - [`default_store`]: makes the store of the installation from the arguments, and the Secrets that the operator owns.
//! - [`controller`]: reconciles all stores.
//! - [`resolve`]: compiles a store and reads its Secret.
//! - [`managed`]: the managed stores, whose servers it keeps up to date. [`embedded`]: what the embedded Redis starts with.
//! - [`status`]: the status of a store.

pub mod controller;
pub mod default_store;
pub mod embedded;
pub mod managed;
pub mod resolve;
pub mod status;
