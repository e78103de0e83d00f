//! HTTP/2 connections to the application. Each HTTP/2 connection of a client has one of its own: streams of a
//! connection share its window and its number of streams, so a client that uses up both would stop the
//! others.

use std::error::Error;
use std::io;

use http_body::Body;
use hyper::client::conn::http2;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use tokio::sync::Mutex;

use crate::capacity::{CONNECTION_WINDOW, STREAM_WINDOW};
use crate::memory::{BUDGET, ReadBudget};
use crate::upstream::address::Upstream;
use crate::upstream::application_stream::ApplicationStream;
use crate::upstream::dial::{CONNECT_TIMEOUT, dial};

/// The HTTP/2 connection to the application that is dedicated to one client connection. Opened at the first
/// request.
#[derive(Debug)]
pub(crate) struct DedicatedConnection<B> {
    current: Mutex<Current<B>>,
}

#[derive(Debug)]
struct Current<B> {
    /// Number of the connection. Requests that fail together name the same number, so that they replace it
    /// once.
    number: u64,
    sender: Option<http2::SendRequest<B>>,
}

/// A connection on which a request can be sent.
pub(crate) struct Opened<B> {
    pub(crate) sender: http2::SendRequest<B>,
    pub(crate) number: u64,
    /// Whether earlier requests used the connection.
    pub(crate) reused: bool,
}

impl<B> DedicatedConnection<B> {
    /// Creates a connection that is opened by its first request.
    pub(crate) fn new() -> Self {
        Self { current: Mutex::new(Current { number: 0, sender: None }) }
    }
}

impl<B> DedicatedConnection<B>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
{
    /// Returns the connection. Opens another one if it is closed or its number is `failed`.
    pub(crate) async fn open(&self, upstream: &Upstream, failed: Option<u64>) -> io::Result<Opened<B>> {
        let current = tokio::time::timeout(CONNECT_TIMEOUT, self.current.lock()).await;
        let mut current = current.map_err(|_| io::ErrorKind::TimedOut)?;
        let Current { number, sender } = &mut *current;
        if let Some(sender) = sender.as_ref().filter(|sender| !sender.is_closed() && failed != Some(*number))
        {
            return Ok(Opened { sender: sender.clone(), number: *number, reused: true });
        }
        let fresh = connect(upstream).await?;
        *number += 1;
        *sender = Some(fresh.clone());
        Ok(Opened { sender: fresh, number: *number, reused: false })
    }
}

async fn connect<B>(upstream: &Upstream) -> io::Result<http2::SendRequest<B>>
where
    B: Body<Data: Send, Error: Into<Box<dyn Error + Send + Sync>>> + Send + Unpin + 'static,
{
    // Requests may have begun before the budget was exceeded.
    BUDGET.ready().await;
    let io = TokioIo::new(ApplicationStream::new(dial(upstream).await?, ReadBudget::http2()));
    let (sender, connection) = http2::Builder::new(TokioExecutor::new())
        .timer(TokioTimer::new())
        .initial_stream_window_size(STREAM_WINDOW)
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buf_size(STREAM_WINDOW as usize)
        .handshake(io)
        .await
        .map_err(io::Error::other)?;
    tokio::spawn(async move {
        if let Err(error) = connection.await {
            tracing::debug!(%error, "an HTTP/2 connection to the application failed");
        }
    });
    Ok(sender)
}
