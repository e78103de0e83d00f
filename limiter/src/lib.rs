//! The algorithms of Sluice as pure functions: a record and an instant go in, a record and an answer come out.
//! No I/O, no clock; whoever calls brings the time.
//!
//! In the order in which a check meets them:
//! - [`rate`]: so many requests per period, and the bounds of every number.
//! - [`record`]: the state of one rate for one key, and its bytes in a store.
//! - [`algorithm`]: one door to all algorithms: roll a record to now, ask for room, charge, settle, look ahead.
//! - [`sliding_window_counter`], [`fixed_window`], [`sliding_window_log`]: windows.
//! - [`arrival`]: token bucket, generic cell rate algorithm and leaky bucket; [`warm_up`]: the bucket that warms up.
//! - [`soft`]: some more for some time.
//! - [`proven`]: what the record of an edited rate can begin with.
//! - [`concurrency`]: so many at a time, over many processes.
//! - [`adaptive`]: how many requests at a time a server can take, learnt from its answers.
//! - [`decision`]: the answer for one rate.
//! - [`parameters`]: what a script that repeats all this must be told.
//!
//! Instants are microseconds since the Unix epoch, of which windows look at whole milliseconds; periods are
//! milliseconds, waits microseconds, counts requests.

pub mod adaptive;
pub mod algorithm;
pub mod arrival;
pub mod concurrency;
pub mod decision;
pub mod fixed_window;
pub mod parameters;
pub mod proven;
pub mod rate;
pub mod record;
pub mod sliding_window_counter;
pub mod sliding_window_log;
pub mod soft;
pub mod warm_up;

#[cfg(test)]
mod testing;

pub use algorithm::{Algorithm, Alignment, Bound, Burst, MaxWait, SubWindows};
pub use concurrency::Holder;
pub use decision::Decision;
pub use rate::{MAX_COUNT, MAX_PERIOD_MS, OutOfRange, Period, Rate, RateError, Requests, Soft};
pub use record::{Overrun, Record, RecordError, Tag};
pub use warm_up::WarmUp;
