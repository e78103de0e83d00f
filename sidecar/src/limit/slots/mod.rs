//! Slots of shared concurrency limits: acquired in the store with the check of a request, released when the request ends,
//! and renewed until then.
//!
//! - [`limit`]: the limit, and the holder under which this process acquires slots.
//! - [`acquire`]: checks a request whose counters include slots.
//! - [`slot`]: the slot of one request; dropping it releases it.
//! - [`table`]: the slots of this process by counter.
//! - [`upkeep`]: the task that sends releases and renewals to the store.
//!
//! A release is noted in a table that one task empties, merged by limit and key. A request that ends never waits for the
//! store, and no release is lost, however many requests end together.
//!
//! The store identifies each process by a *holder*. When it is uncertain whether the store executed a call, or whether it
//! still keeps the slots, the limit continues under a new holder. Slots held under the old one are acquired again under a
//! third as soon as there is room; then the old holder releases everything it may hold. So a slot may be taken for too
//! long, but never by two requests.

mod acquire;
mod limit;
mod slot;
mod table;
#[cfg(test)]
mod tests;
mod upkeep;

pub(crate) use acquire::check_with_slots;
pub(crate) use limit::ConcurrencyLimit;
pub(crate) use slot::Slot;
pub(crate) use table::Slots;
