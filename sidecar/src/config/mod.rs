//! config.

pub(crate) mod last_good;
pub(crate) mod replicas;
pub(crate) mod snapshot;
pub(crate) mod stores;
pub mod subscribe;
