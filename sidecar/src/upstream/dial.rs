//! TCP connections to an application.
//!
//! To an application on the loopback they come from [`SOURCES`] and not from 127.0.0.1: many applications
//! trust that address, and would then trust every client. Only Linux has all of 127/8; elsewhere the system
//! chooses the source.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, lookup_host};

use crate::socket;
use crate::upstream::address::Upstream;

/// Timeout for opening a connection. It is short because the application is in the same pod or close to it.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Source addresses of connections to an application on the loopback. Istio's sidecars use the first for the
/// same purpose, so it is well known. The others serve when the ports of the first are used up.
const SOURCES: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 0, 0, 6), Ipv4Addr::new(127, 0, 0, 7), Ipv4Addr::new(127, 0, 0, 8)];

/// Connects to an application within [`CONNECT_TIMEOUT`].
pub(crate) async fn dial(upstream: &Upstream) -> io::Result<TcpStream> {
    let connecting = async {
        if let Some(address) = upstream.address() {
            return connect(address).await;
        }
        let mut last_error = io::ErrorKind::NotFound.into();
        for address in lookup_host(upstream.authority()).await? {
            match connect(address).await {
                Ok(stream) => return Ok(stream),
                Err(error) => last_error = error,
            }
        }
        Err(last_error)
    };
    let stream = tokio::time::timeout(CONNECT_TIMEOUT, connecting)
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()))?;
    socket::prepare(&stream);
    Ok(stream)
}

async fn connect(address: SocketAddr) -> io::Result<TcpStream> {
    match address {
        SocketAddr::V4(to) if to.ip().is_loopback() => match socket_with_source()? {
            Some(socket) => socket.connect(address).await,
            None => TcpStream::connect(address).await,
        },
        _ => TcpStream::connect(address).await,
    }
}

/// Binds a socket to one of [`SOURCES`]; `None` where the system has no such address. It is an error when all
/// of their ports are in use: a client that could cause this must not become trusted by it.
fn socket_with_source() -> io::Result<Option<TcpSocket>> {
    let mut in_use = io::ErrorKind::AddrInUse.into();
    for source in SOURCES {
        let socket = Socket::new(Domain::IPV4, Type::STREAM, Some(Protocol::TCP))?;
        socket.set_nonblocking(true)?;
        match socket.bind(&SocketAddr::from((source, 0)).into()) {
            Ok(()) => return Ok(Some(TcpSocket::from_std_stream(socket.into()))),
            Err(error) if error.kind() == io::ErrorKind::AddrInUse => in_use = error,
            Err(_) => return Ok(None),
        }
    }
    Err(in_use)
}
