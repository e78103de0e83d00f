//! Finds how many concurrent requests a server can handle, from its response times. These are pure
//! functions as in the rest of this crate, but in floating point and for one process. The caller passes the
//! time.
//!
//! In the order in which a sample meets them:
//! - [`Adaptive`]: takes one sample for each response and holds the current limit.
//! - `sample_window`: gathers samples for about two round trips; an algorithm sees only the summary.
//! - `baseline`: the round trip of the server without a queue, and the probes that measure it.
//! - [`AdaptiveAlgorithm`], [`aimd`], [`vegas`], [`gradient2`]: the next limit, from a limit and a summary.
//! - `parameter`: ranges of the parameters.
//!
//! All algorithms share three rules that their sources do not have:
//! - The limit changes once a window, not once a sample, so its speed does not depend on the request rate. A
//!   window ignores the responses that were still affected by the limit before it.
//! - Every 100 to 200 round trips, and when lower limits do not shorten the round trip, the limit is halved
//!   for a few round trips to measure the round trip without a queue. Under constant overload every other
//!   estimate creeps up with the queue that the limit itself allows.
//! - A difference that may be chance counts as no queue. If round trips vary by a third, the limit is near
//!   the best within 50 round trips of a change; if they vary by their mean, it takes about twice as long.
//!
//! Times are integer microseconds on any clock. Limits are requests in flight.

pub mod aimd;
mod algorithm;
mod baseline;
pub mod gradient2;
mod limit;
mod parameter;
mod sample_window;
#[cfg(test)]
mod simulation;
pub mod vegas;

pub use aimd::Aimd;
pub use algorithm::AdaptiveAlgorithm;
pub use gradient2::Gradient2;
pub use limit::{Adaptive, Bounds, MAX_LIMIT, SampleOutcome};
pub use parameter::InvalidParameter;
pub use sample_window::WindowSummary;
pub use vegas::Vegas;
