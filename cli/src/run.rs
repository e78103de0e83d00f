//! `sluice run`: the sidecar in this process, before a user's own application, with the policies of a file.
//!
//! - [`policy_file`]: the file, read again whenever it changes.
//! - [`store`]: where counters live.

mod policy_file;
mod store;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use anyhow::{Context as _, anyhow, bail};
use sluice_config::Nack;
use sluice_sidecar::process::args::duration;
use sluice_sidecar::process::logging::{self, LogFormat};
use sluice_sidecar::process::run::{Signals, shut_down};
use sluice_sidecar::{Options, Publisher, Route, Sidecar, StoreChoice, StoreState, Upstream};
use tokio::runtime;

use self::policy_file::PolicyFile;
use self::store::StoreArgs;

/// How often the file is looked at.
const LOOK: Duration = Duration::from_millis(500);

/// The arguments of `sluice run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A file of RateLimitPolicy objects; it is read again whenever it changes
    #[arg(long, env = "SLUICE_POLICY", value_name = "FILE")]
    policy: PathBuf,
    /// The application, such as http://127.0.0.1:8080
    #[arg(long, env = "SLUICE_UPSTREAM", value_name = "URL")]
    upstream: Upstream,
    /// Where clients come in
    #[arg(long, env = "SLUICE_LISTEN", default_value = "127.0.0.1:8790")]
    listen: SocketAddr,
    /// Where /livez /readyz /startupz /metrics are
    #[arg(long, env = "SLUICE_ADMIN", default_value = "127.0.0.1:8791")]
    admin: SocketAddr,
    #[command(flatten)]
    store: StoreArgs,
    /// Workers, a core each
    #[arg(long, env = "SLUICE_WORKERS", default_value_t = 1, value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// After SIGTERM: how long it still accepts while others learn that it is no longer ready
    #[arg(long, env = "SLUICE_DRAIN_DELAY", default_value = "0s", value_parser = duration)]
    drain_delay: Duration,
    /// After that: how long requests in flight have
    #[arg(long, env = "SLUICE_DRAIN_TIMEOUT", default_value = "25s", value_parser = duration)]
    drain_timeout: Duration,
    /// How logs look
    #[arg(long, env = "SLUICE_LOG_FORMAT", value_enum, default_value = "text")]
    log_format: LogFormat,
    /// What is logged, such as info or debug
    #[arg(long, env = "SLUICE_LOG", default_value = "info")]
    log: String,
}

/// Runs until a signal ends it.
pub(crate) fn run(args: Args) -> anyhow::Result<()> {
    logging::init(args.log_format, &args.log)?;
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(args))
}

async fn serve(args: Args) -> anyhow::Result<()> {
    let Args {
        policy,
        upstream,
        listen,
        admin,
        store,
        workers,
        drain_delay,
        drain_timeout,
        log_format: _,
        log: _,
    } = args;
    let (mut file, policies) = PolicyFile::open(policy)?;
    let store = store.choice()?;
    let mut signals = Signals::new().context("cannot listen for signals")?;
    let mut options = Options::new(vec![Route { listen, upstream: upstream.clone() }]);
    options.admin = Some(admin);
    options.workers = usize::from(workers);
    let bound = Sidecar::bind(options)?;
    let publisher = bound.publisher();
    let refused = publisher.publish(&store, &policies);
    if let Some((name, refusal)) = refused.first() {
        bail!("{}: {name}: {refusal}", file.name());
    }
    if store != StoreChoice::Unconfigured && publisher.store_state() == StoreState::Unconfigured {
        bail!("--store: it cannot be used, for the reason above");
    }
    let sidecar = bound.serve();
    if let (Some(listening), Some(admin)) = (sidecar.addresses().first(), sidecar.admin()) {
        // For people and for programs: the one line on standard output.
        println!("listening on http://{listening} before http://{upstream}, admin on http://{admin}");
    }
    let names = |policies: &[policy_file::Named]| {
        policies.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
    };
    tracing::info!(file = file.name(), policies = names(&policies), "in force");
    let watch = async {
        loop {
            tokio::time::sleep(LOOK).await;
            let Some(edit) = file.changed() else { continue };
            let edit = edit.and_then(|policies| match &Publisher::misfits(&policies)[..] {
                [] => Ok(policies),
                misfits => {
                    let line =
                        |(name, refusal): &(String, Nack)| format!("{}: {name}: {refusal}", file.name());
                    Err(anyhow!(misfits.iter().map(line).collect::<Vec<String>>().join("\n")))
                }
            });
            match edit {
                Ok(policies) => {
                    // All of them fit.
                    let _ = publisher.publish(&store, &policies);
                    tracing::info!(file = file.name(), policies = names(&policies), "in force");
                }
                Err(error) => {
                    for line in format!("{error:#}").lines() {
                        tracing::error!("{line}");
                    }
                    tracing::warn!("the policies from before this edit stay in force");
                }
            }
        }
    };
    tokio::select! {
        () = signals.next() => {}
        () = watch => {}
    }
    shut_down(sidecar, &mut signals, drain_delay, drain_timeout).await;
    Ok(())
}
