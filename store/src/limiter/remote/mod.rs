//! The limiter in front of a remote store.
//!
//! - [`limiter`]: the limiter: its start, its succession and its end. [`remote_core`]: the state that checks
//!   and background work share.
//! - [`check`]: one check from top to bottom, with the [`denial_cache`] and the [`reservations`] it makes on
//!   the way.
//! - [`acquire`]: acquires a block of leased quota; [`flush`]: adds local usage to the store.
//! - [`background`]: returns unused quota, and flushes when the store is back.
//! - [`backend`]: the operations that a remote store provides; [`unconfigured`]: the store that always fails.
//! - [`store_time`]: an estimate of the store's clock. [`losses`]: counters that the store has lost.

mod acquire;
mod backend;
mod background;
mod check;
mod denial_cache;
mod flush;
mod limiter;
mod losses;
mod remote_core;
mod reservations;
mod store_time;
#[cfg(test)]
mod tests;
mod unconfigured;

pub(super) use limiter::{LocalState, RemoteLimiter};
pub(super) use unconfigured::Unconfigured;
