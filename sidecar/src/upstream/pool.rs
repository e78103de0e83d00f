//! HTTP/1 connections of one worker to one application. An idle connection serves any client, the newest
//! first.

use std::error::Error;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use http_body::Body;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use tokio::time::timeout;

use crate::upstream::application::Application;
use crate::upstream::application::stream::ApplicationStream;
use crate::upstream::dial::{CONNECT_TIMEOUT, dial};
use crate::upstream::expectation::Expectation;
use crate::upstream::pinned::Pinned;
use sluice_host::capacity::MAX_BUFFER;

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
    /// The client to which it belongs; `None` if it serves any.
    owner: Option<Arc<Pinned<B>>>,
    unwanted: Unwanted,
}

/// A body that the application has not asked for, if there is one. It must not be read when the exchange has ended.
#[derive(Debug, Default)]
struct Unwanted(Option<Arc<Expectation>>);

impl Drop for Unwanted {
    fn drop(&mut self) {
        if let Some(expectation) = &self.0 {
            expectation.end();
        }
    }
}

impl<B> PooledConnection<B> {
    /// Makes the connection serve this client only.
    pub(crate) fn pin(&mut self, owner: &Arc<Pinned<B>>) {
        owner.pin();
        self.owner = Some(owner.clone());
    }

    /// Waits until the connection has finished its last exchange, as those from the pool have. Reports whether it has.
    pub(crate) async fn is_ready(&mut self) -> bool {
        self.sender.is_ready()
            || timeout(CONNECT_TIMEOUT, self.sender.ready()).await.is_ok_and(|ready| ready.is_ok())
    }

    /// Notes the expectation of the request on its way.
    pub(crate) fn expect(&mut self, expectation: Option<Arc<Expectation>>) {
        self.unwanted = Unwanted(expectation);
    }

    /// Returns the connection to the pool, or keeps it for its client.
    pub(crate) fn give_back(self) {
        let is_in_use = self.unwanted.0.as_ref().is_some_and(|expectation| expectation.is_unwanted());
        if self.sender.is_closed() || is_in_use {
            return;
        }
        if let Some(owner) = self.owner {
            owner.give_back(self.sender);
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

    fn connection(
        self: &Arc<Self>,
        sender: http1::SendRequest<B>,
        owner: Option<Arc<Pinned<B>>>,
    ) -> PooledConnection<B> {
        PooledConnection { sender, pool: self.clone(), owner, unwanted: Unwanted::default() }
    }

    /// Takes the idle connection of a client that has one of its own, or else the newest one, if there is one.
    pub(crate) fn take_idle(self: &Arc<Self>, client: &Arc<Pinned<B>>) -> Option<PooledConnection<B>> {
        if client.is_own() {
            return client.take().map(|sender| self.connection(sender, Some(client.clone())));
        }
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
                return Some(self.connection(sender, None));
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
    /// Opens a connection, for a client of its own if it has none to share.
    pub(crate) async fn connect(
        self: &Arc<Self>,
        client: &Arc<Pinned<B>>,
    ) -> io::Result<PooledConnection<B>> {
        let io = TokioIo::new(ApplicationStream::http1(dial(&self.application).await?));
        let (sender, connection) =
            http1::Builder::new().max_buf_size(MAX_BUFFER).handshake(io).await.map_err(io::Error::other)?;
        tokio::spawn(async move {
            if let Err(error) = connection.with_upgrades().await {
                tracing::debug!(%error, "a connection to the application failed");
            }
        });
        Ok(self.connection(sender, client.is_own().then(|| client.clone())))
    }
}
