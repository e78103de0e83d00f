//! The recipes of the documentation, examples, and the limits of well-known APIs, as `sluice run` enforces them.
#![allow(clippy::unwrap_used)]

mod apis;
mod client;
mod examples;
mod pages;
#[path = "../process/mod.rs"]
mod process;
