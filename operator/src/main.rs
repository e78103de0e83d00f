//! The binary of the operator. It parses the command line and runs.

use std::time::Duration;

use clap::Parser as _;
use sluice_operator::args::Command;

fn main() -> anyhow::Result<()> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let args = sluice_operator::Args::parse();
    args.init_logging();
    tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?.block_on(async {
        match args.command {
            None => sluice_operator::run(args).await,
            Some(Command::Verify { timeout_seconds }) => {
                sluice_operator::verify(&args, Duration::from_secs(timeout_seconds)).await
            }
        }
    })
}
