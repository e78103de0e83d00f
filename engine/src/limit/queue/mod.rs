//! Queues: requests that a limit denies wait until it admits them.
//!
//! A queue is of one limit and one pod. The requests of a key form a line, and only the first one of it asks the store, when
//! the store has said that there may be room. Others of the key line up behind it without asking. Nothing is held meanwhile: at its
//! turn a request is checked against all its limits, as if it had just arrived. What the limits do about a request that is
//! still denied may change: it then moves to the line of the limit that makes it wait.
//!
//! - [`lines`]: whose turn it is; [`ticket`]: the place of a request, which it leaves when it is dropped.
//! - [`wait`]: whether a denied request waits, and where; [`denial`]: why one cannot wait.
//! - [`mod@admit`]: decides a request that may have to wait.

mod admit;
mod denial;
mod lines;
mod ticket;
mod wait;

pub(crate) use admit::admit;
pub(crate) use denial::{QueueDenial, QueueDenialReason};
pub(crate) use ticket::LimitQueue;
pub(crate) use wait::Wait;
