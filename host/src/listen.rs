//! Binds addresses.

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};

use socket2::{Domain, Protocol, Socket, Type};

/// Maximum number of connections in the kernel's accept queue.
const BACKLOG: i32 = 4096;

/// Binds one listener for each worker to an address. Several share it by SO_REUSEPORT, and the kernel spreads
/// connections over them. A single listener does not share, so that a second process fails because the port
/// is taken.
///
/// `[::]` includes IPv4. Where the kernel has no IPv6, 0.0.0.0 takes its place.
pub fn bind(address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
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
