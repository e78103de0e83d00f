//! Measurements of Sluice against its peers, as ratios within one run, each with a target where there is one.
//!
//! `run.sh` calls `sluice-bench part NAME FILE` for each part, in a process of its own so that a part that
//! fails does not end the others, and then `sluice-bench report FOLDER PART...`.
//!
//! - [`parts`]: what is measured. Each part first verifies that everything it compares enforces its limit.
//! - [`peers`]: the implementations that Sluice is compared with.
//! - [`support`]: CPU cores, processes, keys, interleaved rounds.
//! - [`report`]: table rows, plot data, and the page made from them.

mod parts;
mod peers;
mod report;
mod support;

use std::path::Path;
use std::process::ExitCode;

use anyhow::Context as _;

use crate::report::page;
use crate::report::row::{PartResult, Row};

const USAGE: &str = "usage: sluice-bench part NAME FILE | report FOLDER PART...";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let done = match arguments[..] {
        ["part", name, file] => run_part(name, Path::new(file)),
        ["report", folder, ref names @ ..] if !names.is_empty() => page::print(Path::new(folder), names),
        ["role", ref role @ ..] => parts::run_role(role).map(|()| true),
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

/// Measures one part and writes its result to `file`; returns `Ok(false)` if the part failed, and writes the
/// reason.
fn run_part(name: &str, file: &Path) -> anyhow::Result<bool> {
    let result_file = file.to_owned();
    let print = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        print(info);
        let _ = write(&result_file, &Err(info.payload_as_str().unwrap_or("the part panicked").to_owned()));
    }));
    let folder = file.parent().context("FILE has no parent folder")?;
    let result = measure(name, folder).map_err(|error| format!("{error:#}"));
    write(file, &result)?;
    if let Err(error) = &result {
        eprintln!("sluice-bench: {name}: {error}");
    }
    Ok(result.is_ok())
}

/// Measures one part. Its plot data, if any, goes to `plots/NAME.tsv` below the folder.
fn measure(name: &str, folder: &Path) -> anyhow::Result<Vec<Row>> {
    let measured = parts::measure(name, folder)?;
    if let Some(data) = measured.plot {
        let plots = folder.join("plots");
        std::fs::create_dir_all(&plots)?;
        data.write(&plots.join(format!("{name}.tsv")))?;
    }
    Ok(measured.rows)
}

fn write(file: &Path, result: &PartResult) -> anyhow::Result<()> {
    std::fs::write(file, serde_json::to_string_pretty(result)?)
        .with_context(|| format!("cannot write {}", file.display()))
}
