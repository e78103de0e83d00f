//! HTTP/1 connections of one worker to one application. An idle connection serves any client, the newest
//! first.

use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body::Body;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;

use crate::capacity::MAX_BUFFER;
use crate::memory::ReadBudget;
use crate::upstream::application::Application;
use crate::upstream::application::stream::ApplicationStream;
use crate::upstream::dial::dial;

/// Maximum number of idle connections of a worker.
const MAX_IDLE: usize = 256;
/// Maximum idle time of a connection. Node and uvicorn close theirs after 5 s: closing ours first avoids
/// sending a request on a connection that the application is closing.
const IDLE_TIMEOUT: Duration = Duration::from_secs(4);

/// The connections of a worker to one application. `B` is the body of requests.
#[derive(Debug)]
pub(crate) struct Pool<B> {
    pub(crate) application: Arc<Application>,
    idle: Mutex<Vec<(http1::SendRequest<B>, Instant)>>,
}

/// A connection in use. Dropping it closes the connection.
#[derive(Debug)]
pub(crate) struct PooledConnection<B> {
    pub(crate) sender: http1::SendRequest<B>,
    pool: Arc<Pool<B>>,
}

impl<B> PooledConnection<B> {
    /// Returns the connection to the pool.
    pub(crate) fn give_back(self) {
        if self.sender.is_closed() {
            return;
        }
        let mut idle = self.pool.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MAX_IDLE {
            idle.push((self.sender, Instant::now()));
        }
    }
}

impl<B> Pool<B> {
    /// Creates a pool without connections.
    pub(crate) fn new(application: Arc<Application>) -> Arc<Self> {
        Arc::new(Self { application, idle: Mutex::default() })
    }

    /// Takes the newest idle connection, if there is one.
    pub(crate) fn take_idle(self: &Arc<Self>) -> Option<PooledConnection<B>> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let mut at = idle.len();
        while at > 0 {
            at -= 1;
            let (sender, since) = &idle[at];
            if sender.is_closed() || since.elapsed() > IDLE_TIMEOUT {
                idle.remove(at);
            // A connection that is not ready still finishes its last exchange.
            } else if sender.is_ready() {
                let (sender, _) = idle.remove(at);
                return Some(PooledConnection { sender, pool: self.clone() });
            }
        }
        None
    }

    /// Closes the connections that were idle for too long.
    pub(crate) fn close_expired(&self) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(|(sender, since)| !sender.is_closed() && since.elapsed() <= IDLE_TIMEOUT);
    }
}

impl<B> Pool<B>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + 'static,
{
    /// Opens a connection.
    pub(crate) async fn connect(self: &Arc<Self>) -> io::Result<PooledConnection<B>> {
        let io = TokioIo::new(ApplicationStream::new(dial(&self.application).await?, ReadBudget::http1()));
        let (sender, connection) =
            http1::Builder::new().max_buf_size(MAX_BUFFER).handshake(io).await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to the application failed");
            }
        });
        Ok(PooledConnection { sender, pool: self.clone() })
    }
}
