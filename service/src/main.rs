//! The binary `sluice-service`: it takes the place of envoyproxy/ratelimit, by its environment variables.

use std::process::ExitCode;

use sluice_service::operator::OperatorArgs;
use sluice_service::verify::VerifyArgs;
use tikv_jemallocator::Jemalloc;

/// Returns freed memory to the system, which the allocator of glibc does not after a burst of connections.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// The service of Sluice: answers gateways that ask whether a request may pass
#[derive(Debug, clap::Parser)]
#[command(name = "sluice-service", version, args_override_self = true, subcommand_negates_reqs = true)]
struct Args {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    compat: CompatArgs,
    #[command(flatten)]
    operator: OperatorArgs,
}

/// A command in place of the service.
#[derive(Debug, clap::Subcommand)]
enum Command {
    /// Ask a service whether it answers, and end with an error if it does not
    Verify(VerifyArgs),
}

#[derive(Debug, clap::Args)]
struct CompatArgs {
    /// The program whose place it takes, by its environment variables. Called as `ratelimit`, this is the default
    #[arg(long, env = "SLUICE_COMPAT", value_name = "PROGRAM", value_parser = ["ratelimit"])]
    compat: Option<String>,
}

/// In place of ratelimit, whose variables have forms of their own.
#[derive(Debug, clap::Parser)]
#[command(name = "sluice-service", version)]
struct Ratelimit {
    #[command(flatten)]
    _compat: CompatArgs,
}

fn main() -> ExitCode {
    sluice_host::guard::abort_on_other_panics();
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            sluice_host::logging::say(&format!("sluice-service: {error}"));
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<(), String> {
    let get = |name: &str| std::env::var(name).ok();
    let is_ratelimit = std::env::args().next().is_some_and(|name| name.ends_with("ratelimit"));
    let says_so = std::env::args().any(|argument| argument.starts_with("--compat"));
    if is_ratelimit || says_so || get("SLUICE_COMPAT").is_some() {
        let Ratelimit { _compat } = clap::Parser::parse();
        return sluice_service::run::run(&get).map_err(|error| error.to_string());
    }
    let Args { command, compat: _, operator } = clap::Parser::parse();
    if let Some(Command::Verify(args)) = command {
        return sluice_service::verify::run(&args).map_err(|error| error.to_string());
    }
    let url = operator.operator.clone().ok_or(
        "say --operator URL to enforce the policies of a cluster, or --compat ratelimit and set the environment variables of ratelimit. \
         Without either, use `sluice serve`",
    )?;
    sluice_service::operator::run(&url, operator).map_err(|error| error.to_string())
}
