//! `sluice run`: the sidecar in this process, in front of one application, with the policies of a file. It serves requests until a signal
//! arrives.
//!
//! - [`policy_file`]: the file, read again whenever it changes.
//! - [`store`]: the store that the counters live in.

pub(crate) mod policy_file;
mod store;

use std::io::Write as _;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::thread;
use std::time::Duration;

use anyhow::{Context as _, bail};
use sluice_config::store_access::StoreChoices;
use sluice_crds::policy::Enforcer;
use sluice_engine::trace::TraceArgs;
use sluice_host::duration::duration;
use sluice_host::listen::{address, loopback_address};
use sluice_host::logging::LogFormat;
use sluice_host::signals::Signals;
use sluice_host::{logging, worker};
use sluice_sidecar::process::run::shut_down;
use sluice_sidecar::{Options, Route, Sidecar, Upstream};

use self::policy_file::{NamedPolicy, PolicyArgs, PolicyFiles};
pub(crate) use self::store::StoreArgs;

/// The arguments of `sluice run`.
#[derive(Debug, clap::Args)]
pub(crate) struct RunArgs {
    /// File with RateLimitPolicy objects, or folder with such files; may be repeated. They are read again whenever they change
    #[arg(short = 'f', long, env = "SLUICE_POLICY", value_name = "FILE", required = true)]
    policy: Vec<PathBuf>,
    #[command(flatten)]
    policy_args: PolicyArgs,
    /// URL of the application, such as http://127.0.0.1:8080
    #[arg(long, env = "SLUICE_UPSTREAM", value_name = "URL")]
    upstream: Upstream,
    /// Address on which to accept requests
    #[arg(long, env = "SLUICE_LISTEN", value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:8790")]
    listen: SocketAddr,
    /// Address of /livez, /readyz, /startupz and /metrics
    #[arg(long, env = "SLUICE_ADMIN", value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:8791")]
    admin: SocketAddr,
    /// Address of the debug port, which sluice top, peek, explain and status ask [default: none]
    #[arg(long, env = "SLUICE_DEBUG", value_name = "IP:PORT", value_parser = loopback_address)]
    debug: Option<SocketAddr>,
    #[command(flatten)]
    store: StoreArgs,
    /// Number of worker threads, each of which uses up to one CPU core
    #[arg(long, env = "SLUICE_WORKERS", value_name = "NUMBER", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    workers: u16,
    /// Tell in responses why the store or the application did not answer; false is for a server that the public can
    /// reach
    #[arg(long, env = "SLUICE_DEBUG_HEADERS", value_name = "BOOL", default_value_t = true)]
    #[arg(action = clap::ArgAction::Set)]
    debug_headers: bool,
    /// Time after SIGTERM during which requests are still accepted, while /readyz already fails
    #[arg(long, env = "SLUICE_DRAIN_DELAY", value_name = "DURATION", default_value = "0s")]
    #[arg(value_parser = duration)]
    drain_delay: Duration,
    /// Time after the drain delay that requests in flight have to finish
    #[arg(long, env = "SLUICE_DRAIN_TIMEOUT", value_name = "DURATION", default_value = "25s")]
    #[arg(value_parser = duration)]
    drain_timeout: Duration,
    #[command(flatten)]
    tracing: TraceArgs,
    /// Format of the log on standard error
    #[arg(long, env = "SLUICE_LOG_FORMAT", value_name = "FORMAT", value_enum, default_value = "text")]
    log_format: LogFormat,
    /// Log level or filter, such as debug or info,sluice_store=debug
    #[arg(long, env = "SLUICE_LOG", value_name = "FILTER", default_value = "info,h2=error")]
    log: String,
}

/// Runs until a signal arrives.
pub(crate) fn run(args: RunArgs) -> anyhow::Result<()> {
    sluice_sidecar::abort_on_other_panics();
    let _last_lines = logging::init(args.log_format, &args.log)?;
    worker::runtime().context("cannot start")?.block_on(serve(args))
}

async fn serve(args: RunArgs) -> anyhow::Result<()> {
    let RunArgs {
        policy,
        policy_args,
        upstream,
        listen,
        admin,
        debug,
        store,
        workers,
        debug_headers,
        drain_delay,
        drain_timeout,
        tracing,
        log_format: _,
        log: _,
    } = args;
    let (file, policies) = PolicyFiles::open(policy, &policy_args, Enforcer::Sidecar)?;
    let stores = StoreChoices::only(store.choice()?);
    let mut signals = Signals::new().context("cannot install signal handlers")?;
    let mut options = Options::new(vec![Route { listen, upstream: upstream.clone() }]);
    options.listen_name = "--listen";
    options.admin = Some(admin);
    options.debug = debug;
    options.workers = usize::from(workers);
    options.debug_headers = debug_headers;
    options.tracing = tracing.options("sluice-sidecar");
    let bound = Sidecar::bind(options)?;
    let publisher = bound.publisher();
    if let Some((name, nack)) = publisher.publish(&stores, &policies).first() {
        bail!("{}: {name}: {nack}", file.name());
    }
    let sidecar = bound.serve();
    if let (Some(listening), Some(admin)) = (sidecar.addresses().first(), sidecar.admin()) {
        // The only line on standard output. Programs may parse it, or have left, or never read it.
        let debug = sidecar.debug().map(|debug| format!(", debug on http://{debug}")).unwrap_or_default();
        let line = format!(
            "listening on http://{listening}, forwarding to http://{upstream}, admin on http://{admin}{debug}"
        );
        let _ = thread::Builder::new().spawn(move || drop(writeln!(std::io::stdout(), "{line}")));
    }
    tracing::info!(file = file.name(), policies = names(&policies), "policies applied");
    let publish = |policies: &[NamedPolicy]| {
        // No policy is nacked here: all of them are applicable.
        let _ = publisher.publish(&stores, policies);
        tracing::info!(file = file.name(), policies = names(policies), "policies applied");
    };
    tokio::select! {
        () = signals.end() => {}
        () = file.follow(publisher.files(), publish) => {}
    }
    shut_down(sidecar, &mut signals, drain_delay, drain_timeout).await;
    Ok(())
}

fn names(policies: &[NamedPolicy]) -> String {
    policies.iter().map(|(name, _)| name.as_str()).collect::<Vec<_>>().join(", ")
}
