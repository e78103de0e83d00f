//! Servers that fail again and again, or are not what the URL says, and passwords that change.

#![allow(missing_docs, clippy::unwrap_used)]

#[path = "../support/checks.rs"]
mod checks;
mod flapping;
#[path = "../support/log.rs"]
mod log;
mod password_file;
#[path = "../support/servers.rs"]
mod servers;
#[path = "../support/mod.rs"]
mod support;
