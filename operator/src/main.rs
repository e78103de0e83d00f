//! The binary of the operator. It parses the command line and runs.

use clap::Parser as _;

fn main() -> anyhow::Result<()> {
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let args = sluice_operator::Args::parse();
    args.init_logging();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()?
        .block_on(sluice_operator::run(args))
}
