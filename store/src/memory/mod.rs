//! Counters in this process. A check locks the shards of its counters in ascending order, so that it is
//! atomic across several counters and cannot deadlock. There is no await in this module, and so no lock is
//! held across one.
//!
//! A check travels through these modules in this order:
//! - [`store`]: the store.
//! - [`decide`]: checks, settlements and resets, decided by the definition in [`check`](crate::check).
//! - [`shard`]: a part of the counters, behind one lock.
//! - [`key_registries`]: the numbers of keys of limits with a maximum.
//! - [`overflow`]: counters of a check that share the overflow counter of their limit.
//!
//! Memory is bounded. Checks now and then remove the expired counters of a shard. Beyond the `max_keys` of the store or of a limit,
//! the new keys of a limit share one overflow counter, and known keys keep their own.

mod decide;
mod key_registries;
mod overflow;
mod shard;
mod store;

#[cfg(test)]
mod tests;

pub use store::MemoryStore;
