//! The session with the operator: events come in as one long response, and reports of the results
//! go out.
//!
//! - [`subscriber`]: follows the session, and opens another one whenever it ends.
//! - [`operator`]: sends requests to the operator. [`backoff`]: the wait before another attempt.
//! - [`sse`]: parses the bytes of a session into events.
//! - [`blobs`]: fetches content that policies refer to.
//! - [`received`]: everything received so far. [`versions`]: decides which versions of the policies are active.
//! - [`resets`]: clients whose counters are reset.
//! - [`report`]: sends reports.
//!
//! Without the operator the process keeps its configuration; [`last_good`] keeps it for a restart.

mod backoff;
mod blobs;
mod last_good;
mod operator;
mod received;
mod report;
pub(crate) mod resets;
pub mod sse;
mod subscriber;
mod versions;

pub use self::operator::{InvalidOperatorUrl, Operator};
pub use self::subscriber::Subscriber;
