//! The one door to all counters. A caller describes each limit once as a [`LimitPlan`] and then checks requests against
//! plans; it does not need to know which store counts them.
//!
//! In the order in which a check meets them:
//! - [`plan`]: a limit together with where and how it is counted.
//! - [`door`]: [`Limiter`], which sends the check to the memory store or to the limiter in front of Redis.
//! - [`remote`]: the limiter in front of a remote store; [`decide`] is one check, [`upkeep`] its background work.
//! - [`denial_cache`]: repeats recent denials without a call to the store.
//! - [`backend`]: the operations that a remote store provides; [`unconfigured`]: the store that always fails.
//! - [`outcome`]: the result of a check.
//!
//! Quota leases live in [`crate::lease`], counting without the store in [`crate::local`].

pub(crate) mod backend;
mod decide;
mod denial_cache;
pub(crate) mod door;
pub(crate) mod outcome;
pub(crate) mod plan;
mod remote;
mod store_time;
#[cfg(test)]
mod tests;
mod unconfigured;
mod upkeep;
