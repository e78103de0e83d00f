//! The recipes of the documentation, examples, and the limits of well-known APIs, as `sluice run` enforces them.

mod apis;
mod client;
mod examples;
mod pages;
