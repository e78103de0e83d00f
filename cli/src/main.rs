//! The command `sluice`.
//!
//! - [`check`]: validates policy files.
//! - [`run`]: enforces a policy file in front of one application.
//! - [`serve`]: answers the questions of gateways.
//! - [`simulate`]: replays access logs against policies.
//! - [`status`]: shows policies, stores and pods of a cluster.
//! - [`clients`]: asks sidecars about clients.
//! - [`cluster`]: reaches the sidecars of a cluster.
//! - [`input`]: reads files and standard input; [`output`]: prints tables and JSON.

mod check;
mod clients;
mod cluster;
mod input;
mod output;
mod run;
mod serve;
mod simulate;
mod status;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};
use clients::reset::{Which, reset};
use sluice_crds::checks::installation::InstallationArgs;
use tikv_jemallocator::Jemalloc;

/// Returns freed memory to the system, which the allocator of glibc does not after a burst of connections.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Rate limits for Kubernetes pods, and for a single application outside Kubernetes.
#[derive(Debug, Parser)]
#[command(name = "sluice", bin_name = called_as(), version)]
struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Enforce the policies of a file in front of one application
    Run(Box<run::Args>),
    /// Answer applications and Envoy that ask about rate limits, by the policies of a file or the rules of envoyproxy/ratelimit
    Serve(Box<serve::Args>),
    /// Validate policy files, with the same checks as the admission webhook
    Check {
        #[command(flatten)]
        installation: InstallationArgs,
        /// Policy files to validate; - reads standard input
        #[arg(required = true)]
        files: Vec<PathBuf>,
    },
    /// Replay access logs against policies: who would have been denied, how often and when
    Simulate(Box<simulate::SimulateArgs>),
    /// Show policies, stores, and which pods enforce them
    Status(status::StatusArgs),
    /// Show the clients that limits deny most, over all pods
    Top(clients::top::TopArgs),
    /// Show what one client has left of a limit, without counting
    Peek(clients::peek::PeekArgs),
    /// Give one client its whole quota back, in all pods; a block ends too
    Reset(clients::reset::ResetArgs),
    /// End the block of one client, and give it its whole quota back, in all pods
    Unblock(clients::reset::ResetArgs),
    /// Show which limits a request would meet, and why not the others, without counting
    Explain(clients::explain::ExplainArgs),
}

fn main() -> ExitCode {
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let command = match Args::parse().command {
        Command::Check { installation, files } => return check::check(&files, &(&installation).into()),
        Command::Run(args) => run::run(*args),
        Command::Serve(args) => serve::serve(*args),
        Command::Simulate(args) => match asking(simulate::simulate(*args)) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        Command::Status(args) => asking(status::status(&args)),
        Command::Top(args) => asking(clients::top::top(&args)),
        Command::Peek(args) => asking(clients::peek::peek(args)),
        Command::Reset(args) => asking(reset(args, Which::All)),
        Command::Unblock(args) => asking(reset(args, Which::Blocked)),
        Command::Explain(args) => asking(clients::explain::explain(args)),
    };
    match command {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{}", output::printable(&format!("{error:#}")));
            ExitCode::FAILURE
        }
    }
}

/// Returns the name of the command in help texts: kubectl calls plugins as `kubectl-NAME`.
fn called_as() -> &'static str {
    let path = std::env::args_os().next().unwrap_or_default();
    let name = Path::new(&path).file_stem().unwrap_or_default();
    if name == "kubectl-sluice" { "kubectl sluice" } else { "sluice" }
}

/// Runs an asynchronous command.
fn asking<T>(command: impl Future<Output = Result<T>>) -> Result<T> {
    tokio::runtime::Builder::new_current_thread().enable_all().build()?.block_on(command)
}
