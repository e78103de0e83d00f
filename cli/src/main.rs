//! The command `sluice`.
//!
//! - [`run`]: enforces a policy's file before an application.
//! - [`check`]: validates files of policies.

pub mod check;
mod run;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Rate limits for Kubernetes, and for one application without it.
#[derive(Debug, Parser)]
#[command(name = "sluice", version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Enforce the policies of a file before an application
    Run(Box<run::Args>),
    /// Validate files of policies, as the API server would
    Check {
        /// The files; - is the standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
}

fn main() -> ExitCode {
    // Fails only if there is one already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match Args::parse().command {
        Command::Check { files } => check::check(&files),
        Command::Run(args) => match run::run(*args) {
            Ok(()) => ExitCode::SUCCESS,
            Err(error) => {
                eprintln!("{error:#}");
                ExitCode::FAILURE
            }
        },
    }
}
