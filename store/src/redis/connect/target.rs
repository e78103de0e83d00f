//! A server's address, with the means to connect to it. The servers of a cluster and the master behind
//! sentinels are discovered at run time by their addresses only; a [`TargetTemplate`] adds the credentials
//! and certificates.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::Arc;

use redis::{Client, ConnectionAddr, ConnectionInfo, RedisResult};

use super::login::PasswordFile;
use super::resolve::Resolver;

/// A server to connect to.
pub(crate) struct Target {
    pub(crate) client: Client,
    pub(crate) tls: bool,
    /// `HOST:PORT`, or the path of a socket, for logs and for comparison with other servers.
    pub(crate) address: String,
    pub(super) resolver: Resolver,
    /// Where the password is, if it is not in `client`.
    pub(crate) login: Option<Arc<PasswordFile>>,
}

impl Target {
    pub(crate) fn new(info: ConnectionInfo) -> RedisResult<Self> {
        let address = info.addr().to_string();
        let tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        Ok(Self { client: Client::open(info)?, tls, address, resolver: Resolver::default(), login: None })
    }

    /// Returns how to reach other servers with the same credentials and certificates.
    pub(crate) fn template(&self) -> TargetTemplate {
        TargetTemplate { info: self.client.get_connection_info().clone(), login: self.login.clone() }
    }

    /// Returns the path of the server's socket, if it has one instead of an address.
    pub(super) fn socket(&self) -> Option<&Path> {
        match self.client.get_connection_info().addr() {
            ConnectionAddr::Unix(path) => Some(path),
            _ => None,
        }
    }

    /// Returns the addresses of the server.
    pub(super) async fn addresses(&self) -> io::Result<Vec<SocketAddr>> {
        match self.client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) | ConnectionAddr::TcpTls { host, port, .. } => {
                self.resolver.lookup(host, *port).await
            }
            _ => Err(io::ErrorKind::Unsupported.into()),
        }
    }
}

/// Credentials and certificates for servers whose addresses are discovered.
pub(crate) struct TargetTemplate {
    info: ConnectionInfo,
    login: Option<Arc<PasswordFile>>,
}

impl TargetTemplate {
    /// A template with everything but the address from `info`.
    pub(crate) fn new(info: ConnectionInfo) -> Self {
        Self { info, login: None }
    }

    /// Returns the template of the same servers, with the password in a file.
    pub(crate) fn with_login(self, login: PasswordFile) -> Self {
        Self { login: Some(Arc::new(login)), ..self }
    }

    /// Returns the server at this address, or `None` if the address is invalid.
    pub(crate) fn target(&self, host: &str, port: u16) -> Option<Target> {
        let host = host.to_owned();
        let address = match self.info.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            // There is no other server to be discovered.
            ConnectionAddr::Unix(path) => ConnectionAddr::Unix(path.clone()),
            _ => ConnectionAddr::Tcp(host, port),
        };
        let target = Target::new(self.info.clone().set_addr(address)).ok()?;
        Some(Target { login: self.login.clone(), ..target })
    }
}

/// Splits `HOST:PORT`. The host may be an IPv6 address without brackets, or empty.
pub(crate) fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_is_split_at_its_last_colon() {
        assert_eq!(split("10.0.0.1:6379"), Some(("10.0.0.1", 6379)));
        assert_eq!(split("fd00::1:6379"), Some(("fd00::1", 6379)));
        assert_eq!(split(":6379"), Some(("", 6379)));
        assert_eq!(split("10.0.0.1"), None);
        assert_eq!(split("10.0.0.1:x"), None);
    }
}
