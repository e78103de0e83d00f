//! The way from the API server to the webhook: the two webhook configurations, and whether the API server calls it.
//!
//! - [`configurations`]: what the configurations must say, and what they say. Pure.
//! - [`keep`]: keeps the authority in the configurations, and finds out whether the API server calls the webhook.

pub mod configurations;
pub mod keep;
