//! The tests of the sidecar in one program, so that what they share is compiled and linked once. `tests/run.py` runs each module as
//! a process of its own.

#![allow(clippy::unwrap_used, clippy::panic, missing_docs, reason = "a test fails by a panic")]

mod application_addresses;
mod client_pages;
mod h2spec;
mod http2_floods;
mod pressure;
mod process;
mod proxy_abandoned;
mod proxy_answers;
mod proxy_bad_input;
mod proxy_concurrency;
mod proxy_connections;
mod proxy_delay;
mod proxy_drain;
mod proxy_elastic;
mod proxy_identity;
mod proxy_limits;
mod proxy_on_limit;
mod proxy_posture;
mod proxy_requests;
mod proxy_settle;
mod proxy_store;
#[path = "../../store/tests/support/mod.rs"]
mod server;
mod subscribe;
mod support;
