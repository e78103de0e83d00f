//! Responses that the sidecar writes itself, about requests that it does not forward or that the application does not answer.
//! The engine writes denials.
//!
//! - [`date`]: the time of a response. [`failure`]: one response for each reason.

pub(crate) mod date;
pub(crate) mod failure;
