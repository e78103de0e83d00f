//! The tests of the types of resources in one program, so that what they share is compiled and linked once. `tests/run.py` runs
//! each module as a process of its own.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by a panic")]

mod algorithms;
mod concurrency;
mod costs;
mod generated_yaml;
mod manifest;
mod messages;
mod on_limit;
mod questions;
mod settings;
mod strict_wire;
mod warnings;
