//! The algorithms of Sluice as pure functions. A stored record and an instant go in; a new record and a
//! decision come out. There is no I/O and no clock: the caller passes the time.
//!
//! In the order in which a check meets them, each using only those above it:
//! - `number`: requests, periods and their ranges.
//! - `error`: numbers that do not fit together.
//! - `record`: the state of one rate for one key, and its bytes in a store.
//! - `decision`: the decision of one rate.
//! - `algorithm`: the arithmetic, one file for each algorithm.
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
mod error;
mod number;
mod rate;
mod record;

#[cfg(test)]
mod testing;

pub use algorithm::concurrency::{Holder, MAX_CONCURRENT};
pub use algorithm::fixed_window::Alignment;
pub use algorithm::gcra::{Burst, MaxWait};
pub use algorithm::sliding_window::{Bound, SubWindows};
pub use algorithm::soft::Soft;
pub use algorithm::view::RecordView;
pub use algorithm::warm_up::{MAX_WARM_UP_MS, WarmUp};
pub use decision::Decision;
pub use error::RateError;
pub use number::{MAX_COUNT, MAX_PERIOD_MS, OutOfRange, Period, Requests};
pub use rate::{Algorithm, Rate};
pub use record::{Overrun, Record, RecordError, Tag};
