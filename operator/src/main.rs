//! The binary of the operator. It parses the command line and runs.

use std::process::ExitCode;
use std::time::Duration;

use clap::Parser as _;
use sluice_crds::EXPRESSION_THREAD;
use sluice_host::{logging, worker};
use sluice_operator::{Args, Command};
use tikv_jemallocator::Jemalloc;

/// Returns freed memory to the system, which the allocator of glibc does not after thousands of sidecars have connected at once.
#[global_allocator]
static ALLOCATOR: Jemalloc = Jemalloc;

/// Makes a panic end the process, which starts again: an operator without one of its tasks would be worse than none. The
/// parser of expressions is a library that reads what tenants write, in a thread of its own.
fn abort_on_panics() {
    let report = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        report(panic);
        if std::thread::current().name() != Some(EXPRESSION_THREAD) {
            std::process::abort();
        }
    }));
}

/// Directives of the log before those of the user. The watches log their errors themselves, each once.
const LOG: &str = "kube_runtime::watcher=error,";

fn main() -> ExitCode {
    abort_on_panics();
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let args = Args::parse();
    // A typing error in a value of the chart must not keep a cluster without an operator.
    let _last_lines = logging::init(args.log_format, &format!("{LOG}{}", args.log)).or_else(|error| {
        logging::say(&format!("{error}: using `info`"));
        logging::init(args.log_format, &format!("{LOG}info"))
    });
    match run(args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            logging::say(&format!("Error: {}", logging::told(error.as_ref())));
            ExitCode::FAILURE
        }
    }
}

fn run(args: Args) -> anyhow::Result<()> {
    worker::runtime_with_threads(2)?.block_on(async {
        match args.command {
            None => sluice_operator::run(args).await,
            Some(Command::Verify { timeout_seconds }) => {
                sluice_operator::verify(&args, Duration::from_secs(timeout_seconds)).await
            }
        }
    })
}
