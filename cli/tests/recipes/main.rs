//! The recipes of the documentation, and the limits of well-known APIs, as `sluice run` enforces them.
#![allow(clippy::unwrap_used)]

mod apis;
mod client;
mod pages;
#[path = "../process/mod.rs"]
mod process;
