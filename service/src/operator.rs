//! A service of a cluster as a process: it takes policies from the operator, and checks who asks.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use clap::Args;
use sluice_engine::session::{InvalidOperatorUrl, Operator, Subscriber};
use sluice_engine::trace::TraceArgs;
use sluice_host::capacity;
use sluice_host::duration::duration;
use sluice_host::listen::{address, loopback_address};
use sluice_host::logging::{self, InvalidLogFilter, LogFormat};
use sluice_host::serve::ConnectionAge;
use sluice_host::signals::Signals;
use sluice_host::worker;

use crate::authorizer::AuthorizerArgs;
use crate::callers::{Callers, CallersError};
use crate::service::{Options, Service, StartError};
use crate::tls::TlsFiles;

/// The arguments of a service of a cluster. Every argument can also be set by an environment variable.
#[derive(Debug, Clone, Args)]
pub struct OperatorArgs {
    /// URL of the operator, which sends the policies
    #[arg(long, env = "SLUICE_OPERATOR", value_name = "URL")]
    pub operator: Option<String>,
    /// File with the certificate authority of the operator, in PEM. Read at every connect
    #[arg(long, env = "SLUICE_CA_FILE", value_name = "FILE", default_value = "/var/run/sluice/ca/ca.crt")]
    pub ca_file: PathBuf,
    /// File with the service-account token that identifies this pod. Read at every connect
    #[arg(
        long,
        env = "SLUICE_TOKEN_FILE",
        value_name = "FILE",
        default_value = "/var/run/sluice/token/token"
    )]
    pub token_file: PathBuf,
    /// Directory that keeps the last good policies for a restart. It must be memory-backed, because the file contains the password
    /// of the store
    #[arg(long, env = "SLUICE_STATE_DIR", value_name = "DIRECTORY")]
    pub state_dir: Option<PathBuf>,
    /// Address of the gRPC port, which gateways ask
    #[arg(long, env = "SLUICE_GRPC", value_name = "IP:PORT", value_parser = address, default_value = "127.0.0.1:8081")]
    pub grpc: SocketAddr,
    /// Address of the HTTP port, which applications (/v1/check, /v1/settle) and gateways (/v1/auth) ask. Without it there is none
    #[arg(long, env = "SLUICE_HTTP", value_name = "IP:PORT", value_parser = address)]
    pub http: Option<SocketAddr>,
    /// Address of the admin port, which serves /livez, /readyz, /startupz and /metrics
    #[arg(long, env = "SLUICE_ADMIN", value_name = "IP:PORT", value_parser = address, default_value = "0.0.0.0:8791")]
    pub admin: SocketAddr,
    /// Address of the debug port, which sluice top, peek, explain and status ask. Without it there is none
    #[arg(long, env = "SLUICE_DEBUG", value_name = "IP:PORT", value_parser = loopback_address)]
    pub debug: Option<SocketAddr>,
    /// File with the certificate of both ports, in PEM. Read again when it changes
    #[arg(long, env = "SLUICE_TLS_CERT_FILE", value_name = "FILE", requires = "tls_key_file")]
    pub tls_cert_file: Option<PathBuf>,
    /// File with its private key
    #[arg(long, env = "SLUICE_TLS_KEY_FILE", value_name = "FILE", requires = "tls_cert_file")]
    pub tls_key_file: Option<PathBuf>,
    /// File with the certificate authorities of callers, in PEM
    #[arg(long, env = "SLUICE_CLIENT_CA_FILE", value_name = "FILE", requires = "tls_cert_file")]
    pub client_ca_file: Option<PathBuf>,
    /// File with the callers and what each may ask about, in YAML. Read again when it changes
    #[arg(long, env = "SLUICE_CALLERS_FILE", value_name = "FILE", conflicts_with = "insecure")]
    pub callers_file: Option<PathBuf>,
    /// Answer whoever reaches the ports: the network is trusted
    #[arg(long, env = "SLUICE_INSECURE")]
    pub insecure: bool,
    /// Time for which gateways wait at /v1/auth, and at envoy.service.auth.v3 without a deadline: three quarters of it are for the store
    #[arg(long, env = "SLUICE_AUTH_TIMEOUT", default_value = "200ms", value_parser = duration)]
    pub auth_timeout: Duration,
    /// An authorizer of the user's own
    #[command(flatten)]
    pub authorizer: AuthorizerArgs,
    /// Time after SIGTERM in which connections are still accepted, until the pod is removed from its endpoints
    #[arg(long, env = "SLUICE_DRAIN_DELAY", default_value = "5s", value_parser = duration)]
    pub drain_delay: Duration,
    /// Time after that in which calls in flight can end
    #[arg(long, env = "SLUICE_DRAIN_TIMEOUT", default_value = "20s", value_parser = duration)]
    pub drain_timeout: Duration,
    /// Age at which connections end after their calls, so that callers move to other replicas. 0s: for ever
    #[arg(long, env = "SLUICE_MAX_CONNECTION_AGE", default_value = "5m", value_parser = duration)]
    pub max_connection_age: Duration,
    /// Number of workers [default: the CPU quota of the cgroup, rounded up; 2 without a quota]
    #[arg(long, env = "SLUICE_WORKERS", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub workers: Option<u16>,
    /// Maximum number of connections of callers, of both ports together [default: one for each 160 KiB of the cgroup's memory
    /// limit, from 512 to 10,000]
    #[arg(long, env = "SLUICE_MAX_CONNECTIONS", value_parser = clap::value_parser!(u32).range(1..=1_000_000))]
    pub max_connections: Option<u32>,
    /// Tracing
    #[command(flatten)]
    pub tracing: TraceArgs,
    /// Format of the logs
    #[arg(long, env = "SLUICE_LOG_FORMAT", value_enum, default_value = "text")]
    pub log_format: LogFormat,
    /// Log filter, such as info or info,sluice_store=debug
    #[arg(long, env = "SLUICE_LOG", default_value = "info,h2=error")]
    pub log: String,
}

/// The reason why a process failed.
#[derive(Debug, thiserror::Error)]
pub enum OperatorRunError {
    /// The log filter is invalid.
    #[error(transparent)]
    Filter(#[from] InvalidLogFilter),
    /// The operator's URL is invalid.
    #[error(transparent)]
    Operator(#[from] InvalidOperatorUrl),
    /// The callers cannot be used.
    #[error(transparent)]
    Callers(#[from] CallersError),
    /// Nothing says who may ask.
    #[error(
        "the port {0} can be reached by others, and nothing says who may ask: name the callers by --callers-file, with \
         --tls-cert-file and --tls-key-file, or say --insecure if the network is trusted"
    )]
    Open(SocketAddr),
    /// Tokens and certificates need TLS.
    #[error("callers are identified over TLS: give --tls-cert-file and --tls-key-file")]
    WithoutTls,
    /// The service did not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The runtime or the signal handlers could not be created.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// Runs a service that takes policies from the operator at `url`, until a signal ends the process.
///
/// # Errors
/// It cannot start.
pub fn run(url: &str, args: OperatorArgs) -> Result<(), OperatorRunError> {
    let _last_lines = logging::init(args.log_format, &args.log)?;
    worker::runtime()?.block_on(serve(url, args))
}

async fn serve(url: &str, args: OperatorArgs) -> Result<(), OperatorRunError> {
    let operator = Operator::new(url, args.ca_file.clone(), args.token_file.clone())?;
    let options = options(&args)?;
    let callers = options.callers.clone();
    let mut signals = Signals::new()?;
    let mut service = Service::start(options).await?;
    service.follow_policies();
    let subscriber = Subscriber::new(operator, service.publisher().clone(), Vec::new, args.state_dir.clone());
    let verifying = callers.map(|callers| tokio::spawn(callers.verify_with(subscriber.token_keys())));
    let subscribing = tokio::spawn(subscriber.run());
    let http = service.checks().map(tracing::field::display);
    tracing::info!(grpc = %service.grpc(), http, "bound, and listening from the first policies on");
    signals.end().await;
    let OperatorArgs { drain_delay, drain_timeout, .. } = args;
    tracing::info!(?drain_delay, grace = ?drain_timeout, "draining");
    // Policies can still change while the service drains.
    tokio::select! {
        () = service.shutdown(drain_delay, drain_timeout) => tracing::info!("drained"),
        () = signals.end() => tracing::warn!("a second signal ended the drain"),
    }
    subscribing.abort();
    verifying.iter().for_each(tokio::task::JoinHandle::abort);
    Ok(())
}

fn options(args: &OperatorArgs) -> Result<Options, OperatorRunError> {
    let mut options = Options::new(args.grpc);
    let is_checked = args.callers_file.is_some();
    let mut reachable =
        [Some(args.grpc), args.http].into_iter().flatten().filter(|port| !port.ip().is_loopback());
    let reachable = reachable.next();
    if let (Some(port), false) = (reachable, is_checked || args.insecure) {
        return Err(OperatorRunError::Open(port));
    }
    options.callers = args.callers_file.clone().map(Callers::read).transpose()?;
    options.tls =
        args.tls_cert_file.clone().zip(args.tls_key_file.clone()).map(|(certificate, key)| TlsFiles {
            certificate,
            key,
            client_ca: args.client_ca_file.clone(),
            is_client_optional: is_checked,
            client_name: None,
        });
    if is_checked && options.tls.is_none() && reachable.is_some() {
        return Err(OperatorRunError::WithoutTls);
    }
    options.checks = args.http;
    options.admin = Some(args.admin);
    options.debug = args.debug;
    options.auth_timeout = args.auth_timeout;
    options.authorizer = args.authorizer.clone();
    options.workers = args.workers.map_or_else(capacity::workers, usize::from);
    if let Some(max_connections) = args.max_connections {
        options.max_connections = max_connections as usize;
    }
    let max = Some(args.max_connection_age).filter(|age| !age.is_zero());
    options.age = ConnectionAge { max, ..options.age };
    options.tracing = args.tracing.clone().options("sluice-service");
    Ok(options)
}
