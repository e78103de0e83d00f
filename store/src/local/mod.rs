//! Local quota: while the store does not answer, every replica enforces its own share of each limit.
//!
//! - [`local_limit`]: a limit scaled to this replica's share. Pure.
//! - [`last_known_usage`]: the usage that the store reported last, from which local counting starts.
//! - [`local_counter`]: one counter of this process, and its admissions that are not in the store yet.
//! - [`local_quota`]: all of them, and the flush to the store.
//!
//! If k of p replicas are cut off from the store, at most N(1 + k/p) requests are admitted in a period: N by
//! the store, and its share by each replica that is cut off. A replica with a last known usage starts with
//! its share of that, so the sum stays near N even if all are cut off.
//!
//! # Recovery
//!
//! Local usage is flushed to the store before the next check of the key there, and in the background for keys
//! without checks. It is acquired rather than settled: a settlement only corrects a counter that exists, and
//! a store that lost its data has none. An acquisition stops at the limit, so the next window does not pay
//! for the outage. Usage that has moved into an earlier window is charged to the newest one by its estimate.
//! If the store reports less usage than it must have had before the outage, it has lost some, and the
//! difference is acquired too. If two replicas detect the same loss at the same instant, both add it: too
//! much is denied until the window ends, never too little.
//!
//! # Bounds
//!
//! The number of keys is bounded, and only keys whose records have expired are evicted. Beyond the bound, new
//! keys of a limit share one counter with one share. Its usage belongs to no key and is not flushed.
//!
//! # Why these counters are not in a memory store
//!
//! A counter here starts from the last known usage of each rate, is removed when it is flushed, and is
//! settled by the time of the remote store. One lock covers its records and the usage to flush, so a flush
//! never misses an admission. A [`MemoryStore`](crate::memory::MemoryStore) does none of this. What both have
//! in common, the arithmetic, is [`decide`](crate::check::decide).

mod last_known_usage;
mod local_counter;
mod local_limit;
mod local_quota;
#[cfg(test)]
mod tests;

pub use last_known_usage::KnownUsage;
pub(crate) use last_known_usage::{FlushedRate, SeenUsage};
pub use local_counter::{LocalCounter, UnflushedUsage};
pub use local_quota::LocalQuotaMetrics;
pub(crate) use local_quota::{LocalQuota, UsageFlush};
