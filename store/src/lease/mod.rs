//! Quota leases. A process acquires quota from the store in blocks and admits requests from a block without a
//! call to the store. The store counts a block as used when it grants it, so all holders (processes with a
//! lease) together never exceed the limit. A block expires before the window that it was charged to ends. It
//! is renewed before it is used up, and the unused part is returned. Blocks of a holder that dies are lost
//! until their windows end: too little is admitted, never too much.
//!
//! In the order in which a request meets them:
//! - [`leases`]: the leases of all keys, bounded in number. A key beyond the bound costs a call per request.
//! - [`quota_lease`]: the lease of one key, which decides each request. Pure.
//! - [`block`]: the quota that is left of the grants.
//! - [`denial_pause`]: the time after a denial in which requests are denied without a call.
//! - [`sizing`]: the size of the next block, from [`demand`] and [`estimate`]: the holder's use of quota, and
//!   the state of the counter in the store.
//! - [`review_schedule`]: the times at which unused quota is returned.
//! - [`metrics`]: the metrics of leases.

mod block;
mod demand;
mod denial_pause;
mod estimate;
mod leases;
mod metrics;
mod quota_lease;
mod review_schedule;
#[cfg(test)]
mod simulation;
mod sizing;

pub use block::Block;
pub(crate) use leases::{BlockAcquisition, LeaseOutcome, LeasedQuota, Leases};
pub use metrics::LeaseMetrics;
