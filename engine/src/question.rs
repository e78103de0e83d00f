//! The way of a question, of a gateway or of an application: a counter for each limit that it is about, one check for all of them, and
//! a status for each.
//!
//! - [`status`]: what an answer says of a limit.
//! - [`counters`]: the counters of a question, by how they are checked.
//! - [`token`]: the id by which a reservation is settled.
//! - [`settlement`]: takes reservations back to what was used.
//! - [`asking`]: the checks.

pub(crate) mod asking;
pub(crate) mod counters;
pub(crate) mod settlement;
mod status;
pub(crate) mod token;

pub use status::{CurrentLimit, Outcome, Status};
