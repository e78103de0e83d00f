//! The binary `sluice-sidecar`: parses the arguments and runs.

use std::process::ExitCode;

use clap::Parser as _;
use sluice_sidecar::process::{args::Args, run::run};

/// Returns freed memory to the system, which the allocator of glibc does not after a burst of connections.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

fn main() -> ExitCode {
    sluice_sidecar::abort_on_other_panics();
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match run(Args::parse()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            sluice_host::logging::say(&format!("sluice-sidecar: {error}"));
            ExitCode::FAILURE
        }
    }
}
