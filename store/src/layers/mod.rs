//! Layers above the stores. A request is about limits, each with a plan of how it is to be kept; its question goes down
//! through these until one of them knows the answer:
//!
//! - [`plan`]: a limit and how it is to be kept.
//! - [`denial_cache`]: who was denied is denied again without asking, as long as nothing can have changed.
//! - [`lease`]: quota that was taken in blocks.
//! - [`backend`]: the store itself.
//! - [`share`]: counting in this process when the store does not answer, and telling it afterwards.
//! - [`limiter`]: all of this put together; [`decide`] is one request, [`upkeep`] what goes on beside.
//!
//! [`table`], [`flight`] and [`time`] are what they are made of: a map of bounded size, a call that several wait for, and
//! two clocks.

mod backend;
mod decide;
mod denial_cache;
mod flight;
mod lease;
mod limiter;
mod outcome;
mod plan;
mod share;
mod table;
#[cfg(test)]
mod tests;
mod time;
mod upkeep;

pub use backend::Backend;
pub use lease::LeaseMetrics;
pub use limiter::Limiter;
pub use outcome::{Charge, LimiterMetrics, LimiterOptions, Outcome, Source};
pub use plan::{Consistency, LimitPlan, OnStoreFailure, PlannedCounter};
pub use share::{LocalQuotaMetrics, Replica, Replicas};
