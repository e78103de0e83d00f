//! What takes the place of envoyproxy/ratelimit: its configuration, its variables, and the ways by which the configuration arrives.
//!
//! - [`variables`]: its environment variables, and what becomes of each. [`settings`]: what they say.
//! - [`config`]: the rules of a file or a resource. [`compile`]: makes policies of them.
//! - [`files`], [`xds`]: where rules come from, and how they are followed.

pub mod compile;
pub mod config;
pub mod files;
pub mod settings;
pub mod variables;
pub mod xds;
