//! The work of workers: threads with runtimes and listeners of their own. On the path of a request they share only the
//! snapshot and the store.

use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use sluice_engine::{Engine, Reveal, SETTLE_TIMEOUT};
use tokio_util::task::TaskTracker;
use tokio_util::task::task_tracker::TaskTrackerToken;

use crate::inbound::head_timeout::HeadTimeouts;
use crate::inbound::table::ConnectionTable;
use crate::metrics::registry::Metrics;
use crate::process::listener::Acceptor;
use crate::proxy::{Proxy, RequestLogs};
use crate::upstream::application::Application;
use crate::upstream::in_flight::InFlight;
use crate::upstream::pool::Pool;
use sluice_engine::trace::Tracer;
use sluice_host::drain::DrainWatch;

/// Interval at which expired connections to the application are closed.
const POOL_INTERVAL: Duration = Duration::from_secs(2);

/// Everything that a worker serves requests with.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) listeners: Vec<(TcpListener, Arc<Application>)>,
    pub(crate) engine: Engine,
    /// The requests in flight of all workers.
    pub(crate) in_flight: InFlight,
    pub(crate) metrics: Metrics,
    pub(crate) drain: DrainWatch,
    /// The connections of all workers.
    pub(crate) table: Arc<ConnectionTable>,
    pub(crate) timeouts: HeadTimeouts,
    pub(crate) reveal: Reveal,
    /// Shared by all workers.
    pub(crate) logs: Arc<RequestLogs>,
    pub(crate) tracer: Option<Arc<Tracer>>,
    pub(crate) role: Role,
}

/// The duties of a worker besides serving requests.
#[derive(Debug)]
pub(crate) enum Role {
    /// Runs the store's tasks. So it ends last, after everything has been returned to the store.
    Main {
        /// Tracks the other workers.
        others: TaskTracker,
    },
    Other {
        _running: TaskTrackerToken,
    },
}

impl Work {
    /// Serves requests until the sidecar stops and its connections have ended or the deadline has passed.
    pub(crate) async fn run(self) {
        let Self {
            listeners,
            engine,
            in_flight,
            metrics,
            mut drain,
            table,
            timeouts,
            reveal,
            logs,
            tracer,
            role,
        } = self;
        let connections = TaskTracker::new();
        let mut accepting = Vec::new();
        for (listener, application) in listeners {
            let pool = Pool::new(application);
            tokio::spawn(close_expired(pool.clone()));
            let in_flight = in_flight.add_worker();
            let (engine, metrics, drain) = (engine.clone(), metrics.clone(), drain.clone());
            let (logs, tracer) = (logs.clone(), tracer.clone());
            let proxy = Arc::new(Proxy { pool, engine, metrics, drain, in_flight, reveal, logs, tracer });
            let (table, connections) = (table.clone(), connections.clone());
            accepting.push(tokio::spawn(Acceptor { proxy, table, connections, timeouts }.run(listener)));
        }
        let deadline = drain.stopping().await;
        let ended = async {
            for accepting in accepting {
                if let Ok(Err(error)) = accepting.await {
                    tracing::error!(%error, "a listener failed");
                }
            }
            connections.close();
            connections.wait().await;
        };
        if tokio::time::timeout_at(deadline, ended).await.is_err() {
            let connections = connections.len();
            tracing::warn!(connections, "the grace period is over, closing the remaining connections");
        }
        // The requests that have just ended are settled.
        let settled = tokio::time::Instant::now() + SETTLE_TIMEOUT;
        engine.settle_thread().await;
        if let Role::Main { others } = role {
            others.close();
            // The other workers have the same deadline, and settle their requests after it.
            let _ = tokio::time::timeout_at(deadline.max(settled), others.wait()).await;
            engine.close(deadline).await;
        }
    }
}

async fn close_expired<B>(pool: Arc<Pool<B>>) {
    loop {
        tokio::time::sleep(POOL_INTERVAL).await;
        pool.close_expired();
    }
}
