//! Designs: protocols of which nothing is built yet. When one is, its model moves to the others and calls what runs.
//!
//! - [`relay`]: sidecars ask the store through replicas of the service.
//! - [`epochs`]: what is restored after the store forgot.
//! - [`ownership`]: a partition of counters in the memory of one owner at a time; [`several_owners`]: a check that has several.

pub mod epochs;
pub mod ownership;
pub mod relay;
pub mod several_owners;
