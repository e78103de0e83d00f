//! A sidecar as a process: from its arguments to its end by a signal.

use std::time::Duration;

use tokio::runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::config::subscribe::{NoOperator, Operator, Subscriber};
use crate::process::args::{Args, Command};
use crate::process::cpu_quota;
use crate::process::drain;
use crate::process::logging::{self, BadFilter};
use crate::process::sidecar::{Options, Sidecar, StartError};

/// Why a process could not run.
#[derive(Debug, thiserror::Error)]
pub enum RunError {
    /// The log filter is wrong.
    #[error(transparent)]
    Filter(#[from] BadFilter),
    /// The operator's URL is wrong.
    #[error(transparent)]
    Operator(#[from] NoOperator),
    /// The sidecar does not start.
    #[error(transparent)]
    Start(#[from] StartError),
    /// The running sidecar cannot be told.
    #[error("cannot ask for a drain in {state_dir}: {error}")]
    Drain {
        /// Where.
        state_dir: String,
        /// Why.
        error: std::io::Error,
    },
    /// No runtime, or no signals.
    #[error("the system refuses: {0}")]
    System(#[from] std::io::Error),
}

/// Runs a sidecar until a signal ends it, or does what else is asked for.
pub fn run(args: Args) -> Result<(), RunError> {
    if let Some(Command::Drain { state_dir }) = &args.command {
        return drain::ask(state_dir)
            .map_err(|error| RunError::Drain { state_dir: state_dir.display().to_string(), error });
    }
    logging::init(args.log_format, &args.log)?;
    runtime::Builder::new_current_thread().enable_all().build()?.block_on(serve(args))
}

async fn serve(args: Args) -> Result<(), RunError> {
    let Args {
        command: _,
        proxies,
        admin,
        operator,
        ca_file,
        token_file,
        state_dir,
        startup_wait,
        drain_delay,
        drain_timeout,
        workers,
        max_connections,
        log_format: _,
        log: _,
    } = args;
    let operator = Operator::new(&operator, ca_file, token_file)?;
    let mut signals = Signals::new()?;
    let mut options = Options::new(proxies);
    options.admin = Some(admin);
    options.workers = workers.map_or_else(cpu_quota::workers, usize::from);
    if let Some(max_connections) = max_connections {
        options.max_connections = max_connections as usize;
    }
    options.startup_wait = startup_wait;
    let workers = options.workers;
    if let Some(directory) = &state_dir {
        drain::forget(directory);
    }
    let asked = drain::asked(state_dir.clone());
    let bound = Sidecar::bind(options)?;
    // What was in force before a restart is in force before the first request.
    let subscriber = Subscriber::new(operator, bound.publisher(), state_dir);
    let sidecar = bound.serve();
    let listen: Vec<String> = sidecar.addresses().iter().map(ToString::to_string).collect();
    let admin = sidecar.admin().unwrap_or(admin);
    tracing::info!(listen = listen.join(","), %admin, workers, "listening");
    let subscribing = tokio::spawn(subscriber.run());
    let give_up = async {
        asked.await;
        tracing::info!("asked to drain: connections end with their current request");
        sidecar.close();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        () = signals.next() => {}
        () = give_up => {}
    }
    // Policies still change while it drains.
    end(sidecar, &mut signals, drain_delay, drain_timeout).await;
    subscribing.abort();
    Ok(())
}

/// Ends a sidecar gracefully; a second signal ends it at once.
pub async fn end(sidecar: Sidecar, signals: &mut Signals, delay: Duration, grace: Duration) {
    tracing::info!(?delay, ?grace, "draining");
    tokio::select! {
        () = sidecar.shutdown(delay, grace) => tracing::info!("drained"),
        () = signals.next() => tracing::warn!("ended at once by a second signal"),
    }
}

/// The signals that end a process.
#[derive(Debug)]
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// From now on they end nothing by themselves.
    pub fn new() -> std::io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    /// Waits for the next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
