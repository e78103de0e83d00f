//! The binary `sluice-service`: it takes the place of envoyproxy/ratelimit, by its environment variables.

use std::process::ExitCode;

use tikv_jemallocator::Jemalloc;

/// Returns freed memory to the system, which the allocator of glibc does not after a burst of connections.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// The service of Sluice: answers gateways that ask whether a request may pass.
#[derive(Debug, clap::Parser)]
#[command(name = "sluice-service", version)]
struct Args {
    /// The program whose place it takes, by its environment variables. Called as `ratelimit`, this is the default
    #[arg(long, env = "SLUICE_COMPAT", value_name = "PROGRAM", value_parser = ["ratelimit"])]
    compat: Option<String>,
}

fn main() -> ExitCode {
    sluice_host::guard::abort_on_other_panics();
    // Fails only if a provider is installed already.
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let Args { compat } = clap::Parser::parse();
    let name = std::env::args().next().unwrap_or_default();
    if compat.is_none() && !name.ends_with("ratelimit") {
        eprintln!(
            "sluice-service: say --compat ratelimit, and set the environment variables of ratelimit. Without them, use `sluice serve`"
        );
        return ExitCode::FAILURE;
    }
    match sluice_service::run::run(&|name| std::env::var(name).ok()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("sluice-service: {error}");
            ExitCode::FAILURE
        }
    }
}
