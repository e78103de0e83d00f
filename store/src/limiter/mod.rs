//! The entry point to all counters. A caller describes each limit once as a [`LimitPlan`](crate::plan::LimitPlan)
//! and then checks requests against plans; it does not need to know which store counts them.
//!
//! In the order in which a check meets them:
//! - [`facade`]: [`Limiter`](facade::Limiter), which sends the check to the memory store or to the limiter in
//!   front of Redis.
//! - [`remote`]: the limiter in front of a remote store, with leases, remembered denials and local quota.
//! - [`outcome`]: the options of a limiter and the result of a check.

pub(crate) mod facade;
pub(crate) mod outcome;
mod remote;
