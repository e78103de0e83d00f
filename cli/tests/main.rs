//! The tests of the command in one program, so that what they share is compiled and linked once. `tests/run.py` runs each module as
//! a process of its own.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by a panic")]

mod answers;
mod check;
mod clients;
#[path = "../../store/tests/support/cluster.rs"]
mod cluster;
mod costs;
mod demo;
mod docs;
mod expressions;
mod jwt;
mod keys;
mod matching;
mod on_limit;
mod overrides;
mod process;
mod recipes;
mod run;
#[path = "../../store/tests/support/sentinel.rs"]
mod sentinel;
mod simulate;
mod stores;
#[path = "../../store/tests/support/mod.rs"]
mod support;
mod tenants;
mod tiers;
#[path = "../../store/tests/support/tls.rs"]
mod tls;
