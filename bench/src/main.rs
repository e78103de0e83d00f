//! Measurements against peers, as ratios of one run, each beside what it should be. Everything that is compared is seen to
//! limit first. `run.sh` runs each part in a process of its own, so that one that cannot run does not end the others.
//!
//! `sluice-bench part NAME FILE` measures one part and writes what it found; charts go beside the file. The parts:
//! - [`functions`]: the limiter's pure functions, by Criterion; [`edge`]: what they admit at a window's edge.
//! - [`memory_store`]: the memory store against keyed `governor` and `limitador`; [`memory_size`]: bytes a key.
//! - [`redis_store`]: the Redis store against [`plain_redis`], MULTI and INCRBY by the same client, and against
//!   `limitador`; [`callers`]: over the number of callers.
//! - [`redis_processes`]: many processes with one caller each; [`leases`]: many holders of one limit.
//! - [`redis_size`]: bytes a user in Redis; [`redis_block`]: the longest call; [`outage`]: Redis is killed.
//! - [`proxy`]: CPU per request of the sidecar against nginx.
//! - [`resident`]: resident memory of sidecar and operator, nginx beside.
//!
//! `sluice-bench report FOLDER PART...` makes one page of them. What they share:
//! - [`row`]: what was measured, and [`report`]: how it is printed; [`plot`]: charts.
//! - [`rounds`]: who goes first; [`cores`]: the measured process has a core, all else has another.
//! - [`procfs`]: what Linux knows of a process: its CPU time and memory.
//! - [`child`]: programs that answer lines, such as this one in the roles `caller` and `fill`, and `limitador/`.
//! - [`redis_server`]: a Redis; [`wire`]: what the store sends to it.
//! - [`proxies`]: the sidecar and nginx, before an upstream; [`http`]: that upstream, and who calls.
//! - [`keys`]: limits and clients; [`random`]: the same in each run; [`algorithms`]: all of them.

mod algorithms;
mod callers;
mod child;
mod cores;
mod edge;
mod functions;
mod http;
mod keys;
mod leases;
mod memory_size;
mod memory_store;
mod outage;
mod plain_redis;
mod plot;
mod procfs;
mod proxies;
mod proxy;
mod random;
mod redis_block;
mod redis_processes;
mod redis_server;
mod redis_size;
mod redis_store;
mod report;
mod resident;
mod rounds;
mod row;
mod wire;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, bail};

use crate::plot::Chart;
use crate::row::{Part, Row};

const USAGE: &str = "usage: sluice-bench part NAME FILE | report FOLDER PART...";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["part", name, file] => part(name, Path::new(file)),
        ["report", folder, ref parts @ ..] if !parts.is_empty() => report::print(Path::new(folder), parts),
        ["role", "caller", address, number] => redis_processes::role(address, number).map(|()| true),
        ["role", "fill", who] => memory_size::role(who).map(|()| true),
        _ => Err(anyhow::anyhow!(USAGE)),
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
    let folder = file.parent().context("a file in a folder is expected")?;
    let found = measure(name, folder).map_err(|error| format!("{error:#}"));
    write(file, &found)?;
    if let Err(error) = &found {
        eprintln!("sluice-bench: {name}: {error}");
    }
    Ok(found.is_ok())
}

fn measure(name: &str, folder: &Path) -> anyhow::Result<Vec<Row>> {
    // These need no other process beside them, and the stores in memory are asked by two threads.
    match name {
        "functions" => return functions::measure(folder),
        "edge" => {
            let (chart, rows) = edge::measure()?;
            draw(folder, name, &chart)?;
            return Ok(rows);
        }
        "memory" => return memory_store::measure(),
        "memory-size" => return memory_size::measure(),
        _ => {}
    }
    let cores = cores::Cores::take()?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        match name {
            "redis" => redis_store::measure(cores).await,
            "limitador" => redis_store::measure_limitador(cores).await,
            "callers" => {
                draw(folder, name, &callers::measure(cores).await?)?;
                Ok(Vec::new())
            }
            "processes" => redis_processes::measure(cores).await,
            "leases" => leases::measure(cores).await,
            "redis-size" => redis_size::measure(cores).await,
            "block" => redis_block::measure(cores).await,
            "outage" => {
                let (chart, rows) = outage::measure(cores).await?;
                draw(folder, name, &chart)?;
                Ok(rows)
            }
            "proxy" => proxy::measure(cores).await,
            "resident" => resident::measure(cores).await,
            _ => bail!("there is no part {name:?}"),
        }
    })
}

fn draw(folder: &Path, name: &str, chart: &Chart) -> anyhow::Result<()> {
    let folder = folder.join("plots");
    std::fs::create_dir_all(&folder)?;
    Ok(std::fs::write(folder.join(format!("{name}.svg")), chart.svg())?)
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
