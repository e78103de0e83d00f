//! Stores: which servers hold the counters, and how sidecars reach them.
//!
//! - [`secrets`]: creates the Secrets that the operator owns: the key secret, and the password of the
//!   embedded Redis.
//! - [`default_store`]: makes the store of the installation from the arguments.
//! - [`controller`]: reconciles all stores.
//! - [`resolve`]: compiles a store and reads its Secret, by its [`fields`], as [`access`].
//! - [`managed`]: the managed stores, each with a [`provisioner`] that keeps its servers up to date; their [`passwords`];
//!   [`embedded`]: what the embedded Redis starts with.
//! - [`own_connection`]: the operator's own connection.
//! - [`status`]: the status of a store.

pub mod access;
pub mod controller;
pub mod default_store;
pub mod embedded;
pub mod fields;
pub mod managed;
pub mod own_connection;
pub mod passwords;
pub mod provisioner;
pub mod resolve;
pub mod secrets;
pub mod status;
