//! A sidecar as a process: from its arguments to its end by a signal.

use std::io::ErrorKind;
use std::time::Duration;

use crate::process::args::{Args, Command};
use crate::process::drain_request;
use crate::process::options::Options;
use crate::process::sidecar::{Sidecar, StartError};
use sluice_engine::session::{InvalidOperatorUrl, Operator, Subscriber};
use sluice_host::capacity;
use sluice_host::listen::ListenError;
use sluice_host::logging::{self, InvalidLogFilter};
use sluice_host::signals::Signals;
use sluice_host::worker;

/// The reason why a process failed.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log filter is invalid.
    #[error(transparent)]
    Filter(#[from] InvalidLogFilter),
    /// The operator's URL is invalid.
    #[error(transparent)]
    Operator(#[from] InvalidOperatorUrl),
    /// The sidecar did not start.
    #[error("{}", in_pod(.0))]
    Start(#[from] StartError),
    /// The request to drain could not be created.
    #[error("cannot request a drain in {state_dir}: {error}")]
    Drain {
        /// The state directory.
        state_dir: String,
        /// The error of the system.
        error: std::io::Error,
    },
    /// The runtime or the signal handlers could not be created.
    #[error("cannot start: {0}")]
    System(#[from] std::io::Error),
}

/// Says what to do in a pod, in which another container listens on a port without declaring it.
fn in_pod(error: &StartError) -> String {
    match error {
        StartError::Listen(ListenError { address, name, error }) if error.kind() == ErrorKind::AddrInUse => {
            format!(
                "cannot listen on {address} ({name}): {error}. Another container of the pod listens there without declaring it: add \
             containerPort: {} to its `ports`, and its next sidecar takes another port",
                address.port()
            )
        }
        StartError::Listen(_) | StartError::Worker(_) => error.to_string(),
    }
}

/// Runs the command of the arguments, or a sidecar until a signal ends it.
pub fn run(args: Args) -> Result<(), RunError> {
    if let Some(Command::Drain { state_dir }) = &args.command {
        return drain_request::create(state_dir)
            .map_err(|error| RunError::Drain { state_dir: state_dir.display().to_string(), error });
    }
    let _last_lines = logging::init(args.log_format, &args.log)?;
    worker::runtime()?.block_on(serve(args))
}

async fn serve(args: Args) -> Result<(), RunError> {
    let Args {
        command: _,
        proxies,
        pod_addresses,
        admin,
        debug,
        operator,
        ca_file,
        token_file,
        state_dir,
        startup_wait,
        startup_policy,
        debug_headers,
        drain_delay,
        drain_timeout,
        workers,
        max_connections,
        header_timeout,
        body_timeout,
        idle_timeout,
        http2_idle_timeout,
        upgrade_idle_timeout,
        tracing,
        log_format: _,
        log: _,
    } = args;
    let operator = Operator::new(&operator, ca_file, token_file)?;
    let mut signals = Signals::new()?;
    let mut options = Options::new(proxies);
    options.pod_addresses = pod_addresses;
    options.admin = Some(admin);
    options.debug = debug;
    options.workers = workers.map_or_else(capacity::workers, usize::from);
    if let Some(max_connections) = max_connections {
        options.max_connections = max_connections as usize;
    }
    let unless_zero = |timeout: Duration| Some(timeout).filter(|timeout| !timeout.is_zero());
    (options.header_timeout, options.idle_timeout) = (header_timeout, idle_timeout);
    options.body_timeout = unless_zero(body_timeout);
    options.http2_idle_timeout = unless_zero(http2_idle_timeout);
    options.upgrade_idle_timeout = unless_zero(upgrade_idle_timeout);
    options.startup_wait = startup_wait;
    options.startup_policy = startup_policy;
    options.debug_headers = debug_headers;
    options.tracing = tracing.options("sluice-sidecar");
    let workers = options.workers;
    if let Some(directory) = &state_dir {
        drain_request::remove_stale(directory);
    }
    let drain_requested = drain_request::requested(state_dir.clone());
    let bound = Sidecar::bind(options)?;
    // After a restart the last good policies apply from the first request on.
    let applications = bound.applications();
    let unreachable = move || applications.unreachable();
    let subscriber = Subscriber::new(operator, bound.publisher(), unreachable, state_dir);
    let sidecar = bound.serve();
    let listen: Vec<String> = sidecar.addresses().iter().map(ToString::to_string).collect();
    let admin = sidecar.admin().unwrap_or(admin);
    tracing::info!(listen = listen.join(","), %admin, workers, "listening");
    let subscribing = tokio::spawn(subscriber.run());
    let drain_on_request = async {
        drain_requested.await;
        tracing::info!("drain requested, connections end with their current request");
        sidecar.drain();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = signals.end() => {}
        () = drain_on_request => {}
    }
    // Policies can still change while the sidecar drains.
    shut_down(sidecar, &mut signals, drain_delay, drain_timeout).await;
    subscribing.abort();
    Ok(())
}

/// Shuts a sidecar down gracefully. A second signal ends it immediately.
pub async fn shut_down(sidecar: Sidecar, signals: &mut Signals, delay: Duration, grace: Duration) {
    tracing::info!(?delay, ?grace, "draining");
    tokio::select! {
        () = sidecar.shutdown(delay, grace) => tracing::info!("drained"),
        () = signals.end() => tracing::warn!("a second signal ended the drain"),
    }
}
