//! TCP connections to an application.
//!
//! To an application on the loopback they come from [`SOURCES`] and not from 127.0.0.1: many applications
//! trust that address, and would then trust every client. Only Linux has all of 127/8; elsewhere the system
//! chooses the source. To an address of the pod they come from the same, or for IPv6 from that address.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, SocketAddrV6};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, Type};
use tokio::net::{TcpSocket, TcpStream, lookup_host};

use crate::socket;
use crate::upstream::application::{Application, Candidate};

/// Timeout for opening a connection. It is short because the application is in the same pod or close to it.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Source addresses of connections to an application on the loopback. Istio's sidecars use the first for the
/// same purpose, so it is well known. The others serve when the ports of the first are used up.
const SOURCES: [Ipv4Addr; 3] =
    [Ipv4Addr::new(127, 0, 0, 6), Ipv4Addr::new(127, 0, 0, 7), Ipv4Addr::new(127, 0, 0, 8)];

/// Connects to an application within [`CONNECT_TIMEOUT`].
pub(crate) async fn dial(application: &Application) -> io::Result<TcpStream> {
    let connected = tokio::time::timeout(CONNECT_TIMEOUT, connect_any(application))
        .await
        .unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
    match connected {
        Ok(stream) => {
            socket::prepare(&stream);
            Ok(stream)
        }
        Err(error) => {
            if is_no_answer(&error) {
                application.did_not_answer();
            }
            Err(error)
        }
    }
}

async fn connect_any(application: &Application) -> io::Result<TcpStream> {
    let upstream = application.upstream();
    let mut last_error = io::ErrorKind::NotFound.into();
    if upstream.address().is_none() {
        for address in lookup_host(upstream.authority()).await? {
            match connect(Candidate { to: address, from: None, is_own: false }).await {
                Ok(stream) => {
                    application.answered(0);
                    return Ok(stream);
                }
                Err(error) => last_error = error,
            }
        }
        return Err(last_error);
    }
    for (index, candidate) in application.candidates() {
        match connect(candidate).await {
            Ok(stream) => {
                application.answered(index);
                return Ok(stream);
            }
            // Nothing listens there. Any other error is an application that listens and is in trouble.
            Err(error) if is_not_there(&error) => last_error = error,
            Err(error) => return Err(error),
        }
    }
    Err(last_error)
}

/// Reports whether an error means that nothing listens at an address, or that the system has no such address.
fn is_not_there(error: &io::Error) -> bool {
    const NO_SUCH_FAMILY: i32 = 97;
    matches!(
        error.kind(),
        io::ErrorKind::ConnectionRefused
            | io::ErrorKind::AddrNotAvailable
            | io::ErrorKind::NetworkUnreachable
    ) || cfg!(target_os = "linux") && error.raw_os_error() == Some(NO_SUCH_FAMILY)
}

/// Reports whether an error is the application's, and not one of the sidecar's own resources.
fn is_no_answer(error: &io::Error) -> bool {
    is_not_there(error) || matches!(error.kind(), io::ErrorKind::TimedOut | io::ErrorKind::HostUnreachable)
}

async fn connect(Candidate { to, from, is_own }: Candidate) -> io::Result<TcpStream> {
    match (to, from) {
        (SocketAddr::V4(address), _) if address.ip().is_loopback() || is_own => match socket_with_source()? {
            Some(socket) => socket.connect(to).await,
            None => TcpStream::connect(to).await,
        },
        (SocketAddr::V6(_), Some(from)) => {
            let socket = TcpSocket::new_v6()?;
            socket.bind(SocketAddrV6::new(from, 0, 0, 0).into())?;
            socket.connect(to).await
        }
        (SocketAddr::V4(_) | SocketAddr::V6(_), _) => TcpStream::connect(to).await,
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
