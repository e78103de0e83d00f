//! The limiter's pure functions.
//!
//! - [`algorithms`]: every algorithm, by the name that a policy gives it.
//! - [`functions`]: how long a check takes.
//! - [`edge`]: how much each algorithm admits around the edge of a window.

mod algorithms;
pub(super) mod edge;
pub(super) mod functions;
