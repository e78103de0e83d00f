//! The state of one rate for one key, and its bytes in a store.
//!
//! - [`kind`]: the layouts of a record.
//! - [`tag`]: kind, number of windows and period.
//! - [`state`]: the record.
//! - [`codec`]: encoding and decoding.
//!
//! A record names its algorithm and its period. So an edit of a rate's number keeps the record, and a record
//! of another period is never mistaken for one of this rate.

mod codec;
mod kind;
mod state;
mod tag;

pub use codec::RecordError;
pub use state::{Overrun, Record};
pub use tag::Tag;

pub(crate) use kind::{Kind, MAX_DENIALS, MAX_HOLDERS, MAX_INSTANTS, MAX_RESERVATIONS};
pub(crate) use state::Counts;
