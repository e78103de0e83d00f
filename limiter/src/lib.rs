//! The algorithms of Sluice as pure functions: a record and an instant go in, a record and an answer come out.
//! No I/O, no clock, no allocation; whoever calls brings the time.
//!
//! In the order in which a check meets them:
//! - [`rate`]: so many requests per period, and the bounds of every number.
//! - [`record`]: the state of one rate for one key, and its bytes in a store.
//! - [`algorithm`]: one door to all algorithms: roll a record to now, ask for room, charge, look ahead.
//! - [`sliding_window_counter`], [`fixed_window`]: the definitions.
//! - [`decision`]: the answer for one rate.
//!
//! Times are integer milliseconds since the Unix epoch, durations integer milliseconds, counts requests.

pub mod algorithm;
pub mod decision;
pub mod fixed_window;
pub mod rate;
pub mod record;
pub mod sliding_window_counter;

pub use algorithm::Algorithm;
pub use decision::Decision;
pub use rate::{MAX_COUNT, MAX_PERIOD_MS, OutOfRange, Period, Rate, Requests};
pub use record::{Record, RecordError, Tag};
