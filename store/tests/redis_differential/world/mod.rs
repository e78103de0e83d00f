//! Generated input for the script and for the reference: random limits and their edits, a random clock,
//! random batches and stored values. The reference decides the batches, and keeps what Redis must then hold.
//!
//! - [`state`]: the limits, the clock and the stored values.
//! - [`limits`]: random limits and their edits.
//! - [`clock`]: random steps of the clock.
//! - [`batches`]: random batches.
//! - [`values`], [`records`], [`damage`], [`large`]: random stored values, the records in them, damage to them,
//!   and values as large as they may be.
//! - [`keys`]: the registries of keys.
//! - [`reference`](mod@reference): the decisions and stored values that the script must match.

mod batches;
mod clock;
mod damage;
mod keys;
mod large;
mod limits;
mod records;
mod reference;
mod state;
mod values;

pub(crate) use keys::{CREATED, overflow_name, registry_name};
pub(crate) use state::{ALL, BatchEntry, Focus, Stored, World, encode, expires, name};
