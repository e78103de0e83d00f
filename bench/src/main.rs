//! Measurements against peers, as ratios of one run. Nothing here has an aim; everything that is compared is seen to
//! limit first. `run.sh` runs each part in a process of its own, so that one that cannot run does not end the others.
//!
//! `sluice-bench part NAME FILE` measures one part and writes what it found; the parts are:
//! - [`memory_store`]: the memory store against keyed `governor`.
//! - [`redis_store`]: the Redis store against [`plain_redis`], MULTI and INCRBY by the same client.
//! - [`proxy`]: CPU per request of the sidecar against nginx.
//! - [`resident`]: resident memory of sidecar and operator, nginx beside.
//!
//! `sluice-bench report FILE...` makes one table of them. What they share:
//! - [`row`]: what was measured, and [`report`]: how it is printed.
//! - [`cores`]: the measured process has a core, all else has another.
//! - [`procfs`]: what Linux knows of a process: its CPU time and memory.
//! - [`proxies`]: the sidecar and nginx, before an upstream; [`http`]: that upstream, and who calls.
//! - [`keys`]: clients at random, the same in each run.

mod cores;
mod http;
mod keys;
mod memory_store;
mod plain_redis;
mod procfs;
mod proxies;
mod proxy;
mod redis_store;
mod report;
mod resident;
mod row;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use crate::row::{Part, Row};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["part", name, file] => part(name, Path::new(file)),
        ["report", ref files @ ..] if !files.is_empty() => report::print(files),
        _ => {
            Err(anyhow::anyhow!("usage: sluice-bench part memory|redis|proxy|resident FILE | report FILE..."))
        }
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("sluice-bench: {error:#}");
            ExitCode::FAILURE
        }
    }
}

/// Measures one part; `Ok(false)` when it could not be measured, which its file says.
fn part(name: &str, file: &Path) -> anyhow::Result<bool> {
    let panicked = file.to_owned();
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        let _ = write(&panicked, &Err(info.payload_as_str().unwrap_or("it panicked").to_owned()));
    }));
    let found = measure(name).map_err(|error| format!("{error:#}"));
    write(file, &found)?;
    if let Err(error) = &found {
        eprintln!("sluice-bench: {name}: {error}");
    }
    Ok(found.is_ok())
}

fn measure(name: &str) -> anyhow::Result<Vec<Row>> {
    let cores = cores::Cores::take()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    match name {
        "memory" => memory_store::measure(),
        "redis" => runtime.block_on(redis_store::measure(cores)),
        "proxy" => runtime.block_on(proxy::measure(cores)),
        "resident" => runtime.block_on(resident::measure(cores)),
        _ => bail!("there is no part {name:?}"),
    }
}

fn write(file: &Path, part: &Part) -> anyhow::Result<()> {
    std::fs::write(file, serde_json::to_string_pretty(part)?)
        .with_context(|| format!("{} cannot be written", file.display()))
}

/// A file of the folder `peers`.
fn peer_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("peers").join(name)
}

/// A program of the system; daemons live in sbin, which an ordinary user's PATH may lack.
fn program(name: &str) -> anyhow::Result<PathBuf> {
    let path = std::env::var("PATH").unwrap_or_default() + ":/usr/local/sbin:/usr/sbin:/sbin";
    let found = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|file| file.is_file());
    found.with_context(|| format!("{name} is not installed"))
}
