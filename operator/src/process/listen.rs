//! The sockets on which the operator listens: on all addresses of both families, also where the node has IPv4 or IPv6 alone.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use anyhow::Context as _;
use socket2::{Domain, Protocol, Socket, Type};

/// Number of connections that wait to be accepted, of which the kernel permits `net.core.somaxconn`: all sidecars may connect at once.
const BACKLOG: i32 = 4096;

/// Binds a port. Where the kernel has no IPv6, `[::]` stands for all IPv4 addresses.
pub(super) fn bind(address: SocketAddr) -> anyhow::Result<TcpListener> {
    let bound = bind_exactly(address).or_else(|error| match without_ipv6(address, &error) {
        Some(address) => bind_exactly(address),
        None => Err(error),
    });
    bound.with_context(|| format!("cannot listen on {address}"))
}

fn bind_exactly(address: SocketAddr) -> io::Result<TcpListener> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    // `io::ErrorKind` has no EAFNOSUPPORT.
    const EAFNOSUPPORT: i32 = 97;
    let lacks_ipv6 =
        error.raw_os_error() == Some(EAFNOSUPPORT) || error.kind() == io::ErrorKind::AddrNotAvailable;
    (lacks_ipv6 && address.is_ipv6() && address.ip().is_unspecified())
        .then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn both_families_are_served_by_one_socket() {
        let listener = bind("[::]:0".parse().unwrap()).unwrap();
        let port = listener.local_addr().unwrap().port();
        for address in ["127.0.0.1", "::1"] {
            assert!(TcpStream::connect((address, port)).is_ok(), "{address}");
        }
    }

    #[test]
    fn without_ipv6_all_ipv4_addresses_are_served() {
        let any = "[::]:8080".parse().unwrap();
        let no_family = io::Error::from_raw_os_error(97);
        assert_eq!(without_ipv6(any, &no_family), Some("0.0.0.0:8080".parse().unwrap()));
        assert_eq!(without_ipv6("[::1]:8080".parse().unwrap(), &no_family), None);
        assert_eq!(without_ipv6(any, &io::ErrorKind::AddrInUse.into()), None);
    }
}
