//! The tests of the service in one program, so that what they share is compiled and linked once. `tests/run.py` runs each module as
//! a process of its own.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by a panic")]

mod callers;
mod checks;
mod configuration;
mod heads;
mod ports;
mod ratelimit;
mod reservations;
mod rls;
mod support;
mod tls;
mod variables;
mod xds;
