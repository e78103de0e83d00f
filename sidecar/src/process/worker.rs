//! Workers: threads with a runtime and listeners of their own, which share nothing with each other on the way of a
//! request but the snapshot and the store.

use std::io;
use std::net::TcpListener;
use std::sync::{Arc, mpsc};
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::{Semaphore, mpsc as channel, oneshot};

use crate::config::publisher::Publisher;
use crate::inbound::accept::{Terms, accept};
use crate::inbound::head_timeout::Limits;
use crate::metrics::registry::Metrics;
use crate::process::drain::Watch;
use crate::proxy::Proxy;
use crate::upstream::pool::{Pool, Upstream};

/// How often idle connections to the application are looked at.
const SWEEP: Duration = Duration::from_secs(2);

/// A running worker.
#[derive(Debug)]
pub(crate) struct Worker {
    /// Its runtime: the first worker's also runs the store's task.
    pub(crate) runtime: Handle,
    work: mpsc::Sender<Work>,
    ended: oneshot::Receiver<()>,
}

/// What a worker works on.
#[derive(Debug)]
pub(crate) struct Work {
    pub(crate) listeners: Vec<(TcpListener, Upstream)>,
    pub(crate) publisher: Publisher,
    pub(crate) metrics: Metrics,
    pub(crate) watch: Watch,
    /// One for each connection, of all workers.
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) limits: Limits,
    /// Of the worker that the store's task is on: it ends when the others have ended and everything has been given back.
    pub(crate) others: Option<channel::Receiver<()>>,
    /// Of the others: dropped at the end.
    pub(crate) runs: Option<channel::Sender<()>>,
}

impl Worker {
    /// Starts a thread that waits for work.
    pub(crate) fn start(number: usize) -> io::Result<Self> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let handle = runtime.handle().clone();
        let (work, given) = mpsc::channel::<Work>();
        let (end, ended) = oneshot::channel();
        std::thread::Builder::new().name(format!("sluice-worker-{number}")).spawn(move || {
            if let Ok(work) = given.recv() {
                runtime.block_on(work.run());
            }
            runtime.shutdown_background();
            let _ = end.send(());
        })?;
        Ok(Self { runtime: handle, work, ended })
    }

    /// Gives it its work, once.
    pub(crate) fn work(&self, work: Work) {
        // A worker ends only after its work.
        let _ = self.work.send(work);
    }

    /// Waits for its end.
    pub(crate) async fn ended(self) {
        let _ = self.ended.await;
    }
}

impl Work {
    async fn run(self) {
        let Self { listeners, publisher, metrics, mut watch, slots, limits, others, runs: _runs } = self;
        let last = publisher.clone();
        let (held, mut open) = channel::channel(1);
        let terms = Terms { slots, limits, held };
        let mut accepting = Vec::new();
        for (listener, upstream) in listeners {
            let pool = Pool::new(upstream);
            tokio::spawn(sweep(pool.clone()));
            let (publisher, metrics, watch) = (publisher.clone(), metrics.clone(), watch.clone());
            let busy = publisher.in_flight().worker();
            let proxy = Arc::new(Proxy { pool, publisher, metrics, watch, busy });
            accepting.push(tokio::spawn(accept(listener, proxy, terms.clone())));
        }
        drop(terms);
        let deadline = watch.stopped().await;
        let end = async {
            for accepting in accepting {
                if let Ok(Err(error)) = accepting.await {
                    tracing::error!(%error, "a listener failed");
                }
            }
            // Nobody sends: the channel ends with the last connection.
            let _ = open.recv().await;
        };
        if tokio::time::timeout_at(deadline, end).await.is_err() {
            let left = open.sender_strong_count();
            tracing::warn!(connections = left, "the grace period is over, connections are cut");
        }
        if let Some(mut others) = others {
            // Nobody sends: the channel ends with the last worker, and each has the same deadline.
            let _ = tokio::time::timeout_at(deadline, others.recv()).await;
            last.slots().release_all(deadline).await;
            last.close_stores().await;
        }
    }
}

async fn sweep(pool: Arc<Pool>) {
    loop {
        tokio::time::sleep(SWEEP).await;
        pool.sweep();
    }
}
