//! The arguments of `sluice run`. Their doc comments are the help text.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use sluice_engine::trace::TraceArgs;
use sluice_host::duration::duration;
use sluice_host::listen::{address, loopback_address};
use sluice_host::logging::LogFormat;
use sluice_sidecar::Upstream;

use crate::run::policy_file::PolicyArgs;
use crate::run::store::StoreArgs;

/// The arguments of `sluice run`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// File with RateLimitPolicy objects, or folder with such files; may be repeated. They are read again whenever they change
    #[arg(short = 'f', long, env = "SLUICE_POLICY", value_name = "FILE", required = true)]
    pub(super) policy: Vec<PathBuf>,
    #[command(flatten)]
    pub(super) policy_args: PolicyArgs,
    /// URL of the application, such as http://127.0.0.1:8080
    #[arg(long, env = "SLUICE_UPSTREAM", value_name = "URL")]
    pub(super) upstream: Upstream,
    /// Address on which to accept requests
    #[arg(long, env = "SLUICE_LISTEN", value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:8790")]
    pub(super) listen: SocketAddr,
    /// Address of /livez, /readyz, /startupz and /metrics
    #[arg(long, env = "SLUICE_ADMIN", value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:8791")]
    pub(super) admin: SocketAddr,
    /// Address of the debug port, which sluice top, peek, explain and status ask [default: none]
    #[arg(long, env = "SLUICE_DEBUG", value_name = "IP:PORT", value_parser = loopback_address)]
    pub(super) debug: Option<SocketAddr>,
    #[command(flatten)]
    pub(super) store: StoreArgs,
    /// Number of worker threads, each of which uses up to one CPU core
    #[arg(long, env = "SLUICE_WORKERS", value_name = "NUMBER", default_value_t = 1)]
    #[arg(value_parser = clap::value_parser!(u16).range(1..=256))]
    pub(super) workers: u16,
    /// Tell in responses why the store or the application did not answer; false is for a server that the public can
    /// reach
    #[arg(long, env = "SLUICE_DEBUG_HEADERS", value_name = "BOOL", default_value_t = true)]
    #[arg(action = clap::ArgAction::Set)]
    pub(super) debug_headers: bool,
    /// Time after SIGTERM during which requests are still accepted, while /readyz already fails
    #[arg(long, env = "SLUICE_DRAIN_DELAY", value_name = "DURATION", default_value = "0s")]
    #[arg(value_parser = duration)]
    pub(super) drain_delay: Duration,
    /// Time after the drain delay that requests in flight have to finish
    #[arg(long, env = "SLUICE_DRAIN_TIMEOUT", value_name = "DURATION", default_value = "25s")]
    #[arg(value_parser = duration)]
    pub(super) drain_timeout: Duration,
    #[command(flatten)]
    pub(super) tracing: TraceArgs,
    /// Format of the log on standard error
    #[arg(long, env = "SLUICE_LOG_FORMAT", value_name = "FORMAT", value_enum, default_value = "text")]
    pub(super) log_format: LogFormat,
    /// Log level or filter, such as debug or info,sluice_store=debug
    #[arg(long, env = "SLUICE_LOG", value_name = "FILTER", default_value = "info,h2=error")]
    pub(super) log: String,
}
