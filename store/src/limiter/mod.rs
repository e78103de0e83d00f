//! The entry point to all counters. A caller describes each limit once as a [`LimitPlan`](crate::plan::LimitPlan)
//! and then checks requests against plans; it does not need to know which store counts them.
//!
//! - [`handle`]: [`Limiter`]: its start, its succession and its end. [`core`]: the state that checks and
//!   background work share. [`any_store`]: the store that was configured, or none.
//! - [`outcome`]: the options of a limiter and the result of a check.
//! - [`check`]: one check from top to bottom, with the [`denial_cache`] and the [`reservations`] it makes on
//!   the way. A store in this process decides it at once.
//! - [`acquire`]: acquires a block of leased quota; [`flush`]: adds local usage to the store.
//! - [`background`]: returns unused quota, and flushes when the store is back.
//! - [`store_time`]: an estimate of the store's clock. [`losses`]: counters that the store has lost.

mod acquire;
mod any_store;
mod background;
mod check;
mod core;
mod denial_cache;
mod flush;
mod handle;
mod losses;
mod outcome;
mod reservations;
mod store_time;
#[cfg(test)]
mod tests;

pub use any_store::AnyStore;
pub use handle::Limiter;
pub use outcome::{CheckOutcome, LimiterMetrics, LimiterOptions, Reservation, Source};
