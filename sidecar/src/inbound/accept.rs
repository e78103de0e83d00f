//! Listeners and connections: how many, how long a client may take to say what it wants, and how both end.

use std::convert::Infallible;
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use http::HeaderValue;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use prometheus_client::metrics::gauge::Gauge;
use socket2::{Domain, Protocol as Transport, Socket, Type};
use tokio::net::TcpStream;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, mpsc};

use crate::inbound::head_timeout::{Limits, Patience};
use crate::inbound::protocol::{Protocol, Wire};
use crate::process::drain::Watch;
use crate::proxy::{Connection, Proxy};
use crate::upstream::pool::{CONNECTION_WINDOW, MAX_BUFFER, Own, STREAM_WINDOW};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 4096;
/// How long a connection that has said nothing yet may still do so while a sidecar ends.
const LAST_WORDS: Duration = Duration::from_secs(1);
/// Streams that one HTTP/2 connection may have open.
const MAX_STREAMS: u32 = 250;

/// The right to be one of a sidecar's connections.
#[derive(Debug)]
pub(crate) struct Permit {
    _slot: OwnedSemaphorePermit,
    /// The worker waits for the last of these.
    _held: Held,
    open: Gauge,
}

/// Dropped when a connection, or a listener, has ended.
pub(crate) type Held = mpsc::Sender<Infallible>;

impl Permit {
    fn new(slot: OwnedSemaphorePermit, held: Held, open: Gauge) -> Arc<Self> {
        open.inc();
        Arc::new(Self { _slot: slot, _held: held, open })
    }
}

/// What listeners have in common.
#[derive(Debug, Clone)]
pub(crate) struct Terms {
    /// One for each connection, of all workers.
    pub(crate) slots: Arc<Semaphore>,
    pub(crate) limits: Limits,
    pub(crate) held: Held,
}

impl Drop for Permit {
    fn drop(&mut self) {
        self.open.dec();
    }
}

/// Binds one listener for each worker to one address. Several share it by SO_REUSEPORT, and the kernel spreads the
/// connections; one alone does not share, so that a second process is told that the port is taken.
///
/// `[::]` is every address, IPv4 too; and where the kernel has no IPv6, 0.0.0.0.
pub(crate) fn bind(address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    bind_to(address, workers).or_else(|error| match without_ipv6(address, &error) {
        Some(address) => bind_to(address, workers),
        None => Err(error),
    })
}

/// What to listen on instead of an address that failed for want of IPv6.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    // EAFNOSUPPORT has no kind of its own.
    const NO_SUCH_FAMILY: i32 = 97;
    let wanting =
        error.raw_os_error() == Some(NO_SUCH_FAMILY) || error.kind() == io::ErrorKind::AddrNotAvailable;
    (wanting && address.is_ipv6() && address.ip().is_unspecified())
        .then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
}

fn bind_to(mut address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
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
pub(crate) async fn accept(listener: TcpListener, proxy: Arc<Proxy>, terms: Terms) -> io::Result<()> {
    let listener = tokio::net::TcpListener::from_std(listener)?;
    let mut watch = proxy.watch.clone();
    let mut stopped = pin!(watch.stopped());
    loop {
        tokio::select! {
            biased;
            _ = &mut stopped => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, peer)) => {
                    // Without a free slot this one waits, and others in the accept queue. No worker takes a slot
                    // before it has a use for it.
                    let slot = terms.slots.clone().acquire_owned().await.map_err(io::Error::other)?;
                    begin(stream, peer, &proxy, slot, &terms);
                }
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
        let slot = terms.slots.clone().acquire_owned().await.map_err(io::Error::other)?;
        stream.set_nonblocking(true)?;
        begin(TcpStream::from_std(stream)?, peer, &proxy, slot, &terms);
    }
    Ok(())
}

fn begin(stream: TcpStream, peer: SocketAddr, proxy: &Arc<Proxy>, slot: OwnedSemaphorePermit, terms: &Terms) {
    let permit = Permit::new(slot, terms.held.clone(), proxy.metrics.connections.clone());
    tokio::spawn(serve(stream, peer, proxy.clone(), permit, terms.limits));
}

async fn serve(stream: TcpStream, peer: SocketAddr, proxy: Arc<Proxy>, permit: Arc<Permit>, limits: Limits) {
    let _ = stream.set_nodelay(true);
    let mut watch = proxy.watch.clone();
    let opened = tokio::select! {
        opened = Wire::open(stream, limits) => opened,
        () = last_words(&mut watch) => None,
    };
    let Some((wire, protocol)) = opened else { return };
    let peer = peer.ip().to_canonical();
    // Digits, dots and colons are fit for a header.
    let Ok(forwarded_for) = HeaderValue::try_from(peer.to_string()) else { return };
    let connection = Arc::new(Connection {
        own: Own::new(proxy.pool.clone()),
        proxy,
        peer,
        forwarded_for,
        protocol,
        suspicion: wire.suspicion(),
        requests: AtomicU32::new(0),
        begun: Notify::new(),
        permit,
    });
    let patience = Patience::new(limits, wire.begun());
    let answering = connection.clone();
    let service = service_fn(move |request| {
        let connection = answering.clone();
        async move { Ok::<_, Infallible>(connection.answer(request).await) }
    });
    let io = TokioIo::new(wire);
    let ended = match protocol {
        Protocol::Http1 => {
            // Its answers say when it ends: nobody has to tell it before the very end.
            drop(connection);
            let connection = http1::Builder::new()
                .timer(patience.clone())
                .header_read_timeout(limits.head)
                .max_buf_size(MAX_BUFFER)
                .serve_connection(io, service)
                .with_upgrades();
            let mut connection = pin!(connection);
            let mut stopped = pin!(stopped(&mut watch));
            let mut stopping = false;
            loop {
                tokio::select! {
                    biased;
                    ended = connection.as_mut() => break ended,
                    // It waits for a head: there is nothing that could be lost.
                    () = patience.over() => break Ok(()),
                    () = &mut stopped, if !stopping => {
                        stopping = true;
                        connection.as_mut().graceful_shutdown();
                    }
                }
            }
        }
        Protocol::Http2 => {
            let serving = http2::Builder::new(TokioExecutor::new())
                .timer(TokioTimer::new())
                .keep_alive_interval(Duration::from_secs(30))
                .initial_stream_window_size(STREAM_WINDOW)
                .initial_connection_window_size(CONNECTION_WINDOW)
                .max_send_buf_size(STREAM_WINDOW as usize)
                .max_concurrent_streams(MAX_STREAMS)
                .max_header_list_size(MAX_BUFFER as u32)
                .serve_connection(io, service);
            let mut serving = pin!(serving);
            let mut leave = pin!(leave(&mut watch, connection));
            let mut leaving = false;
            loop {
                tokio::select! {
                    biased;
                    ended = serving.as_mut() => break ended,
                    () = &mut leave, if !leaving => {
                        leaving = true;
                        serving.as_mut().graceful_shutdown();
                    }
                }
            }
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%peer, %error, "a client's connection ended");
    }
}

/// Waits until an HTTP/2 connection shall take no more requests. One that has had none yet while the sidecar still
/// accepts is given one: the client would come back with the next connection, and again.
async fn leave(watch: &mut Watch, connection: Arc<Connection>) {
    watch.closing().await;
    if connection.requests.load(Ordering::Relaxed) == 0 {
        tokio::select! {
            () = connection.begun.notified() => {}
            () = stopped(watch) => {}
        }
    }
    tokio::task::yield_now().await;
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_address_is_every_ipv4_address_where_there_is_no_ipv6() {
        let every: SocketAddr = "[::]:8790".parse().unwrap();
        let instead = Some("0.0.0.0:8790".parse().unwrap());
        let (family, taken) = (io::Error::from_raw_os_error(97), io::ErrorKind::AddrInUse.into());
        assert_eq!(without_ipv6(every, &family), instead);
        assert_eq!(without_ipv6(every, &io::ErrorKind::AddrNotAvailable.into()), instead);
        assert_eq!(without_ipv6(every, &taken), None);
        assert_eq!(without_ipv6("[::1]:8790".parse().unwrap(), &family), None);
        assert_eq!(without_ipv6("0.0.0.0:8790".parse().unwrap(), &family), None);
    }
}
