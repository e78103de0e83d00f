//! The way of a question, of a gateway or of an application: a counter for each limit that it is about, one query for all of them, and
//! a status for each.
//!
//! - [`status`]: what an answer says of a limit.
//! - [`counters`]: the counters of a question, by how they are asked.
//! - [`asking`]: the query, and what its verdict says.

pub(crate) mod asking;
pub(crate) mod counters;
mod status;

pub use status::{CurrentLimit, Outcome, Status};
