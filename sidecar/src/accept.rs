//! Listeners and connections: how many, how long a client may take to say what it wants, and how both end.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prometheus_client::metrics::gauge::Gauge;
use socket2::{Domain, Protocol as Transport, Socket, Type};
use tokio::net::TcpStream;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::drain::Watch;
use crate::pool::{CONNECTION_WINDOW, MAX_BUFFER, STREAM_WINDOW};
use crate::proxy::{Connection, Proxy};
use crate::wire::{Protocol, Wire};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// How long a connection that has said nothing yet may still do so while a sidecar ends.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Streams that one HTTP/2 connection may have open.
const MAX_STREAMS: u32 = 250;

/// The right to be one of a worker's connections.
#[derive(Debug)]
pub(crate) struct Permit {
    _slot: OwnedSemaphorePermit,
    open: Gauge,
}

impl Permit {
    fn new(slot: OwnedSemaphorePermit, open: Gauge) -> Arc<Self> {
        open.inc();
        Arc::new(Self { _slot: slot, open })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// Binds one listener for each worker to one address. Several share it by SO_REUSEPORT, and the kernel spreads the
/// connections; one alone does not share, so that a second process is told that the port is taken.
pub(crate) fn bind(address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    let mut address = address;
    let mut listeners = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Transport::TCP))?;
        socket.set_reuse_address(true)?;
        if workers > 1 {
            socket.set_reuse_port(true)?;
        }
        if address.is_ipv6() {
            socket.set_only_v6(false)?;
        }
        socket.set_nonblocking(true)?;
        socket.bind(&address.into())?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        // Port 0 is chosen once.
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Accepts until told to stop, then empties the accept queue: those clients have been told that they are connected.
pub(crate) async fn accept(
    listener: TcpListener,
    proxy: Arc<Proxy>,
    slots: Arc<Semaphore>,
    patience: Duration,
) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut watch = proxy.watch.clone();
    let mut stopped = pin!(watch.stopped());
    loop {
        let next = async {
            // Without a free slot clients wait in the accept queue.
            let slot = slots.clone().acquire_owned().await.map_err(io::Error::other)?;
            listener.accept().await.map(|accepted| (slot, accepted))
        };
        tokio::select! {
            biased;
            _ = &mut stopped => break,
            accepted = next => match accepted {
                Ok((slot, (stream, peer))) => begin(stream, peer, &proxy, slot, patience),
                Err(error) => {
                    // Out of descriptors or memory: others must end first.
                    tracing::warn!(%error, "a connection could not be accepted");
                    tokio::time::sleep(Duration::from_millis(50)).await;
                }
            }
        }
    }
    let listener = listener.into_std()?;
    while let Ok((stream, peer)) = listener.accept() {
        let slot = slots.clone().acquire_owned().await.map_err(io::Error::other)?;
        stream.set_nonblocking(true)?;
        begin(TcpStream::from_std(stream)?, peer, &proxy, slot, patience);
    }
    Ok(())
}

fn begin(
    stream: TcpStream,
    peer: SocketAddr,
    proxy: &Arc<Proxy>,
    slot: OwnedSemaphorePermit,
    patience: Duration,
) {
    let permit = Permit::new(slot, proxy.metrics.connections.clone());
    tokio::spawn(serve(stream, peer, proxy.clone(), permit, patience));
}

async fn serve(
    stream: TcpStream,
    peer: SocketAddr,
    proxy: Arc<Proxy>,
    permit: Arc<Permit>,
    patience: Duration,
) {
    let _ = stream.set_nodelay(true);
    let mut watch = proxy.watch.clone();
    let opened = tokio::select! {
        opened = Wire::open(stream, patience) => opened,
        () = last_words(&mut watch) => None,
    };
    let Some((wire, protocol)) = opened else { return };
    let connection = Arc::new(Connection {
        proxy,
        peer: peer.ip(),
        protocol,
        suspicion: wire.suspicion(),
        requests: AtomicU32::new(0),
        permit,
    });
    let service = service_fn(move |request| {
        let connection = connection.clone();
        async move { Ok::<_, std::convert::Infallible>(connection.answer(request).await) }
    });
    let io = TokioIo::new(wire);
    let ended = match protocol {
        Protocol::Http1 => {
            let connection = http1::Builder::new()
                .timer(TokioTimer::new())
                .header_read_timeout(patience)
                .max_buf_size(MAX_BUFFER)
                .serve_connection(io, service)
                .with_upgrades();
            let mut connection = pin!(connection);
            tokio::select! {
                biased;
                ended = connection.as_mut() => ended,
                () = stopped(&mut watch) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
        Protocol::Http2 => {
            let connection = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(Duration::from_secs(30))
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_concurrent_streams(MAX_STREAMS)
                .max_header_list_size(MAX_BUFFER as u32)
                .serve_connection(io, service);
            let mut connection = pin!(connection);
            tokio::select! {
                biased;
                ended = connection.as_mut() => ended,
                () = stopped(&mut watch) => {
                    connection.as_mut().graceful_shutdown();
                    connection.await
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a client's connection ended");
    }
}

/// Waits for the end, and then until the connection has seen what was there already: a request that has arrived is
/// answered, an idle connection is closed.
async fn stopped(watch: &mut Watch) {
    watch.stopped().await;
    tokio::task::yield_now().await;
}

async fn last_words(watch: &mut Watch) {
    watch.stopped().await;
    tokio::time::sleep(LAST_WORDS).await;
}
