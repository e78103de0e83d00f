//! The command `sluice`.
//!
//! - [`check`]: validates policy files.
//! - [`run`]: enforces a policy file in front of one application.
//! - [`input`]: reads files and standard input.

mod check;
mod input;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use sluice_crds::compile::installation::InstallationArgs;
use tikv_jemallocator::Jemalloc;

/// Returns freed memory to the system, which the allocator of glibc does not after a burst of connections.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Rate limits for Kubernetes pods, and for a single application outside Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "sluice", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Enforce the policies of a file in front of one application
    Run(Box<run::Args>),
    /// Validate policy files, with the same checks as the admission webhook
    Check {
        #[command(flatten)]
        installation: InstallationArgs,
        /// Policy files to validate; - reads standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match Args::parse().command {
        Command::Check { installation, files } => check::check(&files, &(&installation).into()),
        Command::Run(args) => match run::run(*args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        },
    }
}
