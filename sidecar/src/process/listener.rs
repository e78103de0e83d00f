//! Accepts connections, up to a maximum of all workers together.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use sluice_engine::per_second::LogSampler;
use sluice_host::guard;
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use crate::inbound::head_timeout::HeadTimeouts;
use crate::inbound::table::ConnectionTable;
use crate::process::serve::serve;
use crate::proxy::Proxy;
use crate::proxy::connection::ConnectionPermit;

/// Pause after a failed accept: without descriptors or memory, other connections must end first.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// Accepts the client connections of one worker that are for one application.
pub(crate) struct Acceptor {
    pub(crate) proxy: Arc<Proxy>,
    /// The connections of all workers.
    pub(crate) table: Arc<ConnectionTable>,
    /// Tracks the connections of this worker.
    pub(crate) connections: TaskTracker,
    pub(crate) timeouts: HeadTimeouts,
}

impl Acceptor {
    /// Accepts connections until the sidecar stops, then empties the accept queue: its clients are connected
    /// already.
    pub(crate) async fn run(self, listener: TcpListener) -> io::Result<()> {
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let mut drain = self.proxy.drain.clone();
        let (mut stopping, log) = (pin!(drain.stopping()), LogSampler::default());
        loop {
            tokio::select! {
                biased;
                _ = &mut stopping => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.start(stream, peer).await?,
                    Err(error) => {
                        if let Some(left_out) = log.take() {
                            tracing::warn!(%error, left_out, "cannot accept a connection");
                        }
                        tokio::time::sleep(PAUSE_AFTER_ERROR).await;
                    }
                }
            }
        }
        let listener = listener.into_std()?;
        while let Ok((stream, peer)) = listener.accept() {
            stream.set_nonblocking(true)?;
            self.start(TcpStream::from_std(stream)?, peer).await?;
        }
        Ok(())
    }

    /// Starts to serve a connection. If there are too many, another one makes room. Until then it waits, and so do
    /// the connections in the accept queue. A place is taken only here, so that no worker keeps one that another
    /// could use.
    async fn start(&self, stream: TcpStream, peer: SocketAddr) -> io::Result<()> {
        let place = self.table.place(peer.ip()).await;
        let place = place.ok_or_else(|| io::Error::other("the sidecar ends"))?;
        let open_connections = self.proxy.metrics.connections.clone();
        let permit = ConnectionPermit::new(place, self.connections.token(), open_connections);
        let panics = self.proxy.metrics.panics.clone();
        guard::spawn(serve(stream, peer.ip(), self.proxy.clone(), permit, self.timeouts), panics);
        Ok(())
    }
}
