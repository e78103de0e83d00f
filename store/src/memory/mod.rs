//! Counters in this process. A check locks the shards of its counters in ascending order, so that it is
//! atomic across several counters and cannot deadlock. There is no await in this module, and so no lock is
//! held across one.
//!
//! A check travels through these modules in this order:
//! - [`store`]: the store.
//! - [`fast_path`]: checks of one counter with a plain window or a bucket, which are most checks.
//! - [`general_path`]: all other checks, decided by [`decide`](crate::check::decide).
//! - [`key_registries`]: the numbers of keys of limits with a maximum.
//! - [`overflow`]: counters of a check that share the overflow counter of their limit.
//! - [`rate`]: rates in a form that the fast path decides on.
//! - [`table`]: shards, and the table of cells in each.
//! - [`cell`]: a counter in 32 bytes.
//!
//! Memory is bounded. Checks now and then remove a few expired counters from their shard. Beyond the `max_keys` of the store or of a limit,
//! the new keys of a limit share one overflow counter, and known keys keep their own.

mod cell;
mod fast_path;
mod general_path;
mod key_registries;
mod overflow;
mod rate;
mod store;
mod table;

#[cfg(test)]
mod differential;
#[cfg(test)]
mod tests;

pub(crate) use rate::PreparedLimit;
pub use store::MemoryStore;
