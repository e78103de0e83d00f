//! Slots of shared concurrency limits: acquired in the store with the check of a request, released when the
//! request ends, and renewed until then.
//!
//! - [`limit`]: the limit, and the holder under which this process acquires slots.
//! - [`acquire`]: checks a request whose counters include slots.
//! - [`slot`]: the slot of one request; dropping it releases it.
//! - [`table`]: the slots of this process by counter.
//! - [`upkeep`]: the task that sends releases and renewals to the store.
//!
//! A release is noted in a table that one task empties, merged by limit and key. A request that ends never
//! waits for the store, and no release is lost, however many requests end together.
//!
//! A *holder* is the identity under which this process holds slots in the store. When it is uncertain whether
//! the store executed a call, or whether it still keeps the slots, new requests acquire their slots under a
//! new holder. The slots that are still held under the old one are acquired again, under one more new holder,
//! as soon as there is room; then everything under the old holder is released. So a slot may be occupied for
//! too long, but is never given to two requests.
//!
//! A counter of one holder is in one of these states:
//!
//! | state | entered when | upkeep does | left when |
//! |---|---|---|---|
//! | certain | its first check is sent | sends releases, renews after a third of the lease | a call fails, or a lease expires |
//! | uncertain | the store may count other slots than this process | tries to move the held slots | moved, or the last request ends |
//! | expired | held slots were not renewed in time; also uncertain | renews too; checks deny if the store fails | the store answers |
//! | moving | held slots are being acquired under a new holder | sends nothing else for this counter | the store answers |

mod acquire;
mod limit;
mod slot;
mod table;
#[cfg(test)]
mod tests;
mod upkeep;

pub(crate) use acquire::check_with_slots;
pub(crate) use limit::{ConcurrencyLimit, random_holder};
pub use slot::Slot;
pub(crate) use table::Slots;
