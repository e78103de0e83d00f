//! Rates in a form from which the fast path decides. Each form repeats the arithmetic of `decide` on a cell;
//! the tests compare the two.
//!
//! - [`prepared`]: values derived from a limit once.
//! - [`window`]: a fixed window, or a sliding window of two windows.
//! - [`bucket`]: a token bucket or the generic cell rate algorithm.

mod bucket;
mod prepared;
mod window;

pub(super) use bucket::Bucket;
pub(crate) use prepared::PreparedLimit;
pub(super) use window::{Verdict, Window};
