//! The algorithms, one file each: parameters, validation, and the arithmetic on records.
//!
//! Every algorithm offers the same steps, as free functions over its parameters, a quota and a record:
//! `validate`, `roll` (bring a stored record to now), `used`, `has_room`, `charge`, `settle`, `decide` and
//! `script_arguments`. [`Rate`](crate::Rate) calls the functions of its own algorithm.
//!
//! - [`clock_windows`]: windows aligned to the clock, shared by the next two.
//! - [`sliding_window`], [`fixed_window`]: counts in windows; [`soft`]: their extra above the number.
//! - [`log`]: the instant of every request.
//! - [`gcra`]: token bucket, generic cell rate algorithm and leaky bucket.
//! - [`warm_up`]: the bucket that warms up.
//! - [`concurrency`]: slots shared by many processes.
//! - [`view`]: the summary of a record with a long tail.
//! - [`stored`]: operations on a record without its rate.

pub(crate) mod clock_windows;
pub(crate) mod concurrency;
pub(crate) mod fixed_window;
pub(crate) mod gcra;
pub(crate) mod log;
pub(crate) mod sliding_window;
pub(crate) mod soft;
mod stored;
pub(crate) mod view;
pub(crate) mod warm_up;
