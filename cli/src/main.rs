//! The command `sluice`.
//!
//! - [`check`]: validates policy files.
//! - [`run`]: enforces a policy file in front of one application.
//! - [`serve`]: answers the questions of gateways.
//! - [`demo`]: shows `run` at work.
//! - [`simulate`]: replays access logs against policies.
//! - [`status`]: shows policies, stores and pods of a cluster.
//! - [`clients`]: asks sidecars about clients.
//! - [`cluster`]: reaches the sidecars of a cluster.
//! - [`input`]: reads files and standard input; [`output`]: prints tables and JSON.

// Helpers of the commands that a feature adds stay without it.
#![cfg_attr(not(all(feature = "cluster", feature = "serve", feature = "simulate")), allow(dead_code))]

mod check;
#[cfg(feature = "cluster")]
mod clients;
#[cfg(feature = "cluster")]
mod cluster;
mod demo;
mod input;
mod output;
mod run;
#[cfg(feature = "serve")]
mod serve;
#[cfg(feature = "simulate")]
mod simulate;
#[cfg(feature = "cluster")]
mod status;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context as _, Result};
use clap::{CommandFactory as _, Parser, Subcommand};
use clap_complete::Shell;
#[cfg(feature = "cluster")]
use clients::reset::{Which, reset};

/// Returns freed memory to the system, which the allocator of glibc does not after a burst of connections.
#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

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
    Run(Box<run::RunArgs>),
    /// Answer applications and Envoy that ask about rate limits, by the policies of a file or the rules of envoyproxy/ratelimit
    #[cfg(feature = "serve")]
    Serve(Box<serve::ServeArgs>),
    /// Show a limit at work: an application, a sidecar and requests, on this machine
    Demo(demo::DemoArgs),
    /// Validate policy files, with the same checks as the admission webhook
    Check(Box<check::CheckArgs>),
    /// Print a script for a shell that completes commands and flags
    Completion {
        /// The shell
        shell: Shell,
    },
    /// Write a page of the manual for each command into a folder, which is made if there is none
    Man {
        /// The folder
        #[arg(value_name = "FOLDER")]
        folder: PathBuf,
    },
    /// Replay access logs against policies: who would have been denied, how often and when
    #[cfg(feature = "simulate")]
    Simulate(Box<simulate::SimulateArgs>),
    /// Show policies, stores, and which pods enforce them
    #[cfg(feature = "cluster")]
    Status(status::StatusArgs),
    /// Show the clients that limits deny most, over all pods
    #[cfg(feature = "cluster")]
    Top(clients::TopArgs),
    /// Show what one client has left of a limit, without counting
    #[cfg(feature = "cluster")]
    Peek(clients::PeekArgs),
    /// Give one client its whole quota back, in all pods; a block ends too
    #[cfg(feature = "cluster")]
    Reset(clients::reset::ResetArgs),
    /// End the block of one client, and give it its whole quota back, in all pods
    #[cfg(feature = "cluster")]
    Unblock(clients::reset::ResetArgs),
    /// Show which limits a request would meet, and why not the others, without counting
    #[cfg(feature = "cluster")]
    Explain(clients::explain::ExplainArgs),
}

fn main() -> ExitCode {
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let command = match Args::parse().command {
        Command::Check(args) => return check::check(*args),
        Command::Completion { shell } => {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Args::command(), "sluice", &mut script);
            output::print_bytes(&script)
        }
        Command::Man { folder } => std::fs::create_dir_all(&folder)
            .and_then(|()| clap_mangen::generate_to(Args::command(), &folder))
            .with_context(|| format!("cannot write to {}", folder.display())),
        Command::Run(args) => run::run(*args),
        Command::Demo(args) => asking(demo::demo(&args)),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::serve(*args),
        #[cfg(feature = "simulate")]
        Command::Simulate(args) => match asking(simulate::simulate(*args)) {
            Ok(code) => return code,
            Err(error) => Err(error),
        },
        #[cfg(feature = "cluster")]
        Command::Status(args) => asking(status::status(&args)),
        #[cfg(feature = "cluster")]
        Command::Top(args) => asking(clients::top(&args)),
        #[cfg(feature = "cluster")]
        Command::Peek(args) => asking(clients::peek(args)),
        #[cfg(feature = "cluster")]
        Command::Reset(args) => asking(reset(args, Which::All)),
        #[cfg(feature = "cluster")]
        Command::Unblock(args) => asking(reset(args, Which::Blocked)),
        #[cfg(feature = "cluster")]
        Command::Explain(args) => asking(clients::explain::explain(args)),
    };
    match command {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            sluice_host::logging::say(&output::printable(&sluice_host::logging::told(error.as_ref())));
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
