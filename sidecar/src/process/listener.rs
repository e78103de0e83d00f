//! Listeners: binds addresses, and accepts connections up to a maximum of all workers together.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::TcpStream;
use tokio_util::task::TaskTracker;

use crate::inbound::guard;
use crate::inbound::head_timeout::HeadTimeouts;
use crate::inbound::table::ConnectionTable;
use crate::process::serve::serve;
use crate::proxy::Proxy;
use crate::proxy::connection::ConnectionPermit;

/// Maximum number of connections in the kernel's accept queue.
const BACKLOG: i32 = 4096;
/// Pause after a failed accept: without descriptors or memory, other connections must end first.
const PAUSE_AFTER_ERROR: Duration = Duration::from_millis(50);

/// Binds one listener for each worker to an address. Several share it by SO_REUSEPORT, and the kernel spreads
/// connections over them. A single listener does not share, so that a second process fails because the port
/// is taken.
///
/// `[::]` includes IPv4. Where the kernel has no IPv6, 0.0.0.0 takes its place.
pub(crate) fn bind(address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    bind_exactly(address, workers).or_else(|error| match without_ipv6(address, &error) {
        Some(address) => bind_exactly(address, workers),
        None => Err(error),
    })
}

/// Returns the address to bind in place of one that failed because the kernel has no IPv6.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    // `io::ErrorKind` has no EAFNOSUPPORT.
    const EAFNOSUPPORT: i32 = 97;
    let lacks_ipv6 =
        error.raw_os_error() == Some(EAFNOSUPPORT) || error.kind() == io::ErrorKind::AddrNotAvailable;
    (lacks_ipv6 && address.is_ipv6() && address.ip().is_unspecified())
        .then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
}

fn bind_exactly(mut address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    let mut listeners = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
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
        // The first listener chooses the port for 0; the others take the same one.
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(listeners)
}

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
        let mut stopping = pin!(drain.stopping());
        loop {
            tokio::select! {
                biased;
                _ = &mut stopping => break,
                accepted = listener.accept() => match accepted {
                    Ok((stream, peer)) => self.start(stream, peer).await?,
                    Err(error) => {
                        tracing::warn!(%error, "cannot accept a connection");
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_unspecified_address_falls_back_to_ipv4_without_ipv6() {
        let unspecified: SocketAddr = "[::]:8790".parse().unwrap();
        let instead = Some("0.0.0.0:8790".parse().unwrap());
        let (no_family, in_use) = (io::Error::from_raw_os_error(97), io::ErrorKind::AddrInUse.into());
        assert_eq!(without_ipv6(unspecified, &no_family), instead);
        assert_eq!(without_ipv6(unspecified, &io::ErrorKind::AddrNotAvailable.into()), instead);
        assert_eq!(without_ipv6(unspecified, &in_use), None);
        assert_eq!(without_ipv6("[::1]:8790".parse().unwrap(), &no_family), None);
        assert_eq!(without_ipv6("0.0.0.0:8790".parse().unwrap(), &no_family), None);
    }
}
