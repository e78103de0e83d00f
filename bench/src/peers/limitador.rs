//! The `limitador` crate, in the program of `bench/limitador/`, which `run.sh` builds. Its commands are
//! documented there.

use std::path::Path;

use anyhow::Context as _;

use crate::support::child::Child;

/// Starts limitador with an empty storage in memory, to be filled with keys.
pub(crate) fn start_empty() -> anyhow::Result<Child> {
    start(&["fill"])
}

/// Starts limitador with a storage in Redis: `async` or `cached`.
pub(crate) fn start_in_redis(kind: &str, url: &str, clients: u64, requests: u32) -> anyhow::Result<Child> {
    start(&["redis", kind, url, &clients.to_string(), &requests.to_string()])
}

fn start(arguments: &[&str]) -> anyhow::Result<Child> {
    let program = std::env::var_os("SLUICE_BENCH_LIMITADOR")
        .context("limitador has not been built: SLUICE_BENCH_LIMITADOR is not set")?;
    Child::start(Path::new(&program), arguments)
}
