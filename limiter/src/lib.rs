//! The algorithms of Sluice as pure functions. A stored record and an instant go in; a new record and a
//! decision come out. There is no I/O and no clock: the caller passes the time.
//!
//! In the order in which a check meets them, each using only those above it:
//! - `number`: requests, periods and their ranges; `duration`: their text.
//! - `error`: numbers that do not fit together.
//! - `record`: the state of one rate for one key, and its bytes in a store.
//! - `soft`: the extra above a number; `quota`: the numbers that all algorithms share.
//! - `decision`: the decision of one rate.
//! - `algorithm`: the algorithms, one file each, behind one trait.
//! - `rate`: a number of requests per period with its algorithm. [`Rate`] is how other crates use all of
//!   this.
//!
//! Beside them, [`adaptive`] finds how many concurrent requests a server can handle, from its response times.
//!
//! Instants are microseconds since the Unix epoch; windows use only their whole milliseconds. Periods are
//! milliseconds, waits microseconds, counts requests.

pub mod adaptive;
mod algorithm;
mod decision;
mod duration;
mod error;
mod key_registry;
mod number;
mod quota;
mod rate;
mod record;
mod soft;

#[cfg(test)]
mod testing;

pub use algorithm::*;
pub use decision::Decision;
pub use duration::{Millis, Words};
pub use error::RateError;
pub use key_registry::{KeyRegistry, partition_share};
pub use number::{MAX_COUNT, MAX_PERIOD_MS, OutOfRange, Period, Requests};
pub use rate::Rate;
pub use record::{Overrun, Record, RecordError, Tag};
pub use soft::Soft;
