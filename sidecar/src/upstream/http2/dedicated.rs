//! HTTP/2 connections to the application. Each HTTP/2 connection of a client has one of its own: streams of a
//! connection share its window and its number of streams, so a client that uses up both would stop the
//! others.

use std::convert::Infallible;
use std::io;

use bytes::Bytes;
use h2::client::{Builder, Connection, SendRequest};
use tokio::sync::{Mutex, oneshot};

use crate::http2::header_blocks::{H2_LIST, LongBlocks};
use crate::http2::joined_writes::JoinedWrites;
use crate::http2::{CONNECTION_WINDOW, MAX_BROKEN_STREAMS, STREAM_WINDOW, stream_window};
use crate::memory::BUDGET;
use crate::upstream::application::Application;
use crate::upstream::application::stream::ApplicationStream;
use crate::upstream::dial::{CONNECT_TIMEOUT, dial};

/// Number of streams that an application should permit at least (RFC 9113, 6.5.2).
const FIRST_STREAMS: usize = 100;

/// The HTTP/2 connection to the application that is dedicated to one client connection. Opened at the first
/// request.
#[derive(Debug)]
pub(crate) struct DedicatedConnection {
    current: Mutex<Current>,
}

#[derive(Debug)]
struct Current {
    /// Number of the connection. Requests that fail together name the same number, so that they replace it
    /// once.
    number: u64,
    open: Option<OpenConnection>,
}

#[derive(Debug)]
struct OpenConnection {
    sender: SendRequest<Bytes>,
    long_blocks: LongBlocks,
    /// Dropped when no more requests follow.
    _in_use: oneshot::Sender<Infallible>,
}

impl OpenConnection {
    fn opened(&self, number: u64) -> Opened {
        Opened { sender: self.sender.clone(), long_blocks: self.long_blocks.clone(), number }
    }
}

/// A connection on which a request can be sent, unless it has ended meanwhile.
pub(in crate::upstream) struct Opened {
    pub(in crate::upstream) sender: SendRequest<Bytes>,
    pub(in crate::upstream) long_blocks: LongBlocks,
    pub(in crate::upstream) number: u64,
}

impl DedicatedConnection {
    /// Creates a connection that is opened by its first request.
    pub(crate) fn new() -> Self {
        Self { current: Mutex::new(Current { number: 0, open: None }) }
    }

    /// Returns the connection. Opens another one if its number is `failed`.
    pub(in crate::upstream) async fn open(
        &self,
        application: &Application,
        failed: Option<u64>,
    ) -> io::Result<Opened> {
        let mut current = match self.current.try_lock() {
            Ok(current) => current,
            // Another request opens the connection.
            Err(_) => {
                let current = tokio::time::timeout(CONNECT_TIMEOUT, self.current.lock()).await;
                current.map_err(|_| io::ErrorKind::TimedOut)?
            }
        };
        let Current { number, open } = &mut *current;
        if let Some(open) = open.as_ref().filter(|_| failed != Some(*number)) {
            return Ok(open.opened(*number));
        }
        let fresh = connect(application).await?;
        *number += 1;
        let opened = fresh.opened(*number);
        *open = Some(fresh);
        Ok(opened)
    }
}

async fn connect(application: &Application) -> io::Result<OpenConnection> {
    // Requests may have begun before the budget was exceeded.
    BUDGET.ready().await;
    let (stream, long_blocks) = ApplicationStream::http2(dial(application).await?);
    let (sender, connection) = Builder::new()
        .enable_push(false)
        .initial_window_size(stream_window())
        .initial_connection_window_size(CONNECTION_WINDOW)
        .max_send_buffer_size(STREAM_WINDOW as usize)
        .max_header_list_size(H2_LIST)
        // Until the application has said how many it permits.
        .initial_max_send_streams(FIRST_STREAMS)
        .max_local_error_reset_streams(Some(MAX_BROKEN_STREAMS))
        .handshake(JoinedWrites::new(stream))
        .await
        .map_err(io::Error::other)?;
    let (in_use, unused) = oneshot::channel();
    tokio::spawn(run(connection, unused));
    Ok(OpenConnection { sender, long_blocks, _in_use: in_use })
}

/// Moves the bytes of a connection until it ends. Once it is unused, it ends with its last stream.
async fn run(
    mut connection: Connection<JoinedWrites<ApplicationStream>, Bytes>,
    unused: oneshot::Receiver<Infallible>,
) {
    let result = tokio::select! {
        result = &mut connection => result,
        // A connection notices that nobody can send requests any more only when it is polled.
        _ = unused => connection.await,
    };
    if let Err(error) = result {
        tracing::debug!(%error, "an HTTP/2 connection to the application failed");
    }
}
