//! The addresses that a process listens on: how users write them, and how they are bound.

use std::fmt;
use std::io::{self, ErrorKind};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener};
use std::time::Duration;

use socket2::{Domain, Protocol, Socket, TcpKeepalive, Type};

/// Maximum number of connections in the kernel's accept queue.
const BACKLOG: i32 = 4096;
/// Idle time after which the kernel probes whether the other end of a connection still exists.
const KEEPALIVE: Duration = Duration::from_secs(30);

/// The reason why a process cannot listen on an address.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({name}): {error}{}", Remedy(self))]
pub struct ListenError {
    /// The address.
    pub address: SocketAddr,
    /// The flag, or the variable, that names it.
    pub name: &'static str,
    /// The error of the system.
    pub error: io::Error,
}

/// A sentence that says what to do about an address that cannot be bound.
struct Remedy<'a>(&'a ListenError);

impl fmt::Display for Remedy<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ListenError { address, name, error } = self.0;
        match error.kind() {
            ErrorKind::AddrInUse => {
                write!(f, ". Another process listens there: stop it, or set another port with {name}")
            }
            ErrorKind::PermissionDenied => {
                write!(
                    f,
                    ". Port {} needs CAP_NET_BIND_SERVICE: set one above 1023 with {name}",
                    address.port()
                )
            }
            ErrorKind::AddrNotAvailable => {
                write!(
                    f,
                    ". This machine does not have the address: write one of its own, or only the port, to {name}"
                )
            }
            _ => Ok(()),
        }
    }
}

/// Parses the address of a port that others may reach: `IP:PORT`, or `:PORT` or `PORT` for all addresses of this machine.
pub fn address(text: &str) -> Result<SocketAddr, String> {
    parse(text, Ipv6Addr::UNSPECIFIED.into())
}

/// Parses the address of a port that only this machine should reach: `IP:PORT`, or `:PORT` or `PORT` for 127.0.0.1.
pub fn loopback_address(text: &str) -> Result<SocketAddr, String> {
    parse(text, Ipv4Addr::LOCALHOST.into())
}

fn parse(text: &str, without_address: IpAddr) -> Result<SocketAddr, String> {
    let (host, port) = text.rsplit_once(':').unwrap_or(("", text));
    let ip = match host {
        "" => Some(without_address),
        "localhost" => Some(Ipv4Addr::LOCALHOST.into()),
        _ => None,
    };
    // A port has digits alone; a sign is none of them.
    let port = port.parse().ok().filter(|_| port.bytes().all(|byte| byte.is_ascii_digit()));
    match (ip, port) {
        (Some(ip), Some(port)) => Ok(SocketAddr::new(ip, port)),
        _ => text.parse().map_err(|_| "write IP:PORT, such as 127.0.0.1:8790, or :PORT".to_owned()),
    }
}

/// Binds one listener for each worker to an address. Several share it by SO_REUSEPORT, and the kernel spreads
/// connections over them. Two processes never share it: the second one fails.
///
/// `[::]` includes IPv4. Where the kernel has no IPv6, 0.0.0.0 takes its place.
///
/// # Errors
/// The address cannot be bound. `name` is the flag, or the variable, that names it.
pub fn bind(
    address: SocketAddr,
    name: &'static str,
    workers: usize,
) -> Result<Vec<TcpListener>, ListenError> {
    let bound = bind_exactly(address, workers).or_else(|error| match without_ipv6(address, &error) {
        Some(address) => bind_exactly(address, workers),
        None => Err(error),
    });
    bound.map_err(|error| ListenError { address, name, error })
}

/// Returns the address to bind in place of one that failed because the kernel has no IPv6.
fn without_ipv6(address: SocketAddr, error: &io::Error) -> Option<SocketAddr> {
    // `io::ErrorKind` has no EAFNOSUPPORT.
    const EAFNOSUPPORT: i32 = 97;
    let lacks_ipv6 =
        error.raw_os_error() == Some(EAFNOSUPPORT) || error.kind() == ErrorKind::AddrNotAvailable;
    (lacks_ipv6 && address.is_ipv6() && address.ip().is_unspecified())
        .then(|| SocketAddr::from((Ipv4Addr::UNSPECIFIED, address.port())))
}

fn bind_exactly(mut address: SocketAddr, workers: usize) -> io::Result<Vec<TcpListener>> {
    if workers > 1 {
        // Listeners that share an address would also share it with those of another process.
        drop(socket(address, false)?);
    }
    let mut listeners = Vec::with_capacity(workers);
    for _ in 0..workers {
        let socket = socket(address, workers > 1)?;
        socket.listen(BACKLOG)?;
        let listener = TcpListener::from(socket);
        // The first listener chooses the port for 0; the others take the same one.
        address = listener.local_addr()?;
        listeners.push(listener);
    }
    Ok(listeners)
}

/// Creates a socket with an address.
fn socket(address: SocketAddr, is_shared: bool) -> io::Result<Socket> {
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    socket.set_reuse_address(true)?;
    socket.set_reuse_port(is_shared)?;
    if address.is_ipv6() {
        socket.set_only_v6(false)?;
    }
    socket.set_nonblocking(true)?;
    // Connections have what their listener has.
    socket.set_tcp_keepalive(&TcpKeepalive::new().with_time(KEEPALIVE).with_interval(KEEPALIVE / 3))?;
    socket.bind(&address.into())?;
    Ok(socket)
}

#[cfg(test)]
mod tests {
    use std::net::TcpStream;

    use super::*;

    #[test]
    fn an_address_can_be_a_port_alone() {
        for (text, reachable, local) in [
            (":8790", "[::]:8790", "127.0.0.1:8790"),
            ("8790", "[::]:8790", "127.0.0.1:8790"),
            ("localhost:8790", "127.0.0.1:8790", "127.0.0.1:8790"),
            ("10.0.0.1:80", "10.0.0.1:80", "10.0.0.1:80"),
            ("[::1]:80", "[::1]:80", "[::1]:80"),
            ("0.0.0.0:0", "0.0.0.0:0", "0.0.0.0:0"),
        ] {
            assert_eq!(address(text), Ok(reachable.parse().unwrap()), "{text}");
            assert_eq!(loopback_address(text), Ok(local.parse().unwrap()), "{text}");
        }
        for bad in [
            "",
            ":",
            "a",
            "a:1",
            "::1",
            "127.0.0.1",
            ":65536",
            "+80",
            ":-1",
            "localhost",
            " 80",
            "http://127.0.0.1:80",
        ] {
            assert!(address(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn a_second_process_cannot_take_a_port_and_is_told_what_to_do() {
        for (first, second) in [(1, 1), (1, 2), (2, 1), (2, 2)] {
            let bound = bind("127.0.0.1:0".parse().unwrap(), "--listen", first).unwrap();
            let address = bound[0].local_addr().unwrap();
            assert_eq!(bound.len(), first);
            let error = bind(address, "--listen", second).unwrap_err().to_string();
            assert!(error.starts_with(&format!("cannot listen on {address} (--listen): ")), "{error}");
            assert!(error.ends_with("set another port with --listen"), "{error}");
        }
        // An address of the documentation, which no machine has.
        let error = bind("192.0.2.1:0".parse().unwrap(), "--admin", 1).unwrap_err().to_string();
        assert!(error.contains("does not have the address") && error.contains("--admin"), "{error}");
    }

    #[test]
    fn both_families_are_served_by_one_socket() {
        let listener = bind("[::]:0".parse().unwrap(), "--listen", 1).unwrap().remove(0);
        let port = listener.local_addr().unwrap().port();
        for address in ["127.0.0.1", "::1"] {
            assert!(TcpStream::connect((address, port)).is_ok(), "{address}");
        }
    }

    #[test]
    fn the_kernel_probes_whether_the_other_end_of_a_connection_exists() {
        let listener = bind("127.0.0.1:0".parse().unwrap(), "--listen", 1).unwrap().remove(0);
        let _client = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (connection, _) = listener.accept().unwrap();
        let socket = socket2::SockRef::from(&connection);
        assert!(socket.keepalive().unwrap());
        assert_eq!(socket.tcp_keepalive_time().unwrap(), KEEPALIVE);
    }

    #[test]
    fn the_unspecified_address_falls_back_to_ipv4_without_ipv6() {
        let unspecified: SocketAddr = "[::]:8790".parse().unwrap();
        let instead = Some("0.0.0.0:8790".parse().unwrap());
        let (no_family, in_use) = (io::Error::from_raw_os_error(97), ErrorKind::AddrInUse.into());
        assert_eq!(without_ipv6(unspecified, &no_family), instead);
        assert_eq!(without_ipv6(unspecified, &ErrorKind::AddrNotAvailable.into()), instead);
        assert_eq!(without_ipv6(unspecified, &in_use), None);
        assert_eq!(without_ipv6("[::1]:8790".parse().unwrap(), &no_family), None);
        assert_eq!(without_ipv6("0.0.0.0:8790".parse().unwrap(), &no_family), None);
    }
}
