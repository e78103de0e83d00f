//! The way from the API server to the webhook: the two webhook configurations, and whether the API server calls it.
//!
//! - [`configurations`]: what the configurations must say, and what they say. Pure.
//! - [`path`]: what is known about the way, and the proof of it.
//! - [`keep`]: keeps the authority in the configurations, and finds out the rest.

pub mod configurations;
pub mod keep;
pub mod path;
