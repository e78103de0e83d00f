//! The sidecar's process: parses its arguments and runs.

use std::process::ExitCode;

use clap::Parser as _;
use sluice_sidecar::process::{args::Args, run::run};

fn main() -> ExitCode {
    // Fails only if there is one already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice-sidecar: {error}");
            ExitCode::FAILURE
        }
    }
}
