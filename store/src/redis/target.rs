//! A server that can be tried, and how others like it are made: the servers of a cluster, and those that sentinels name,
//! are known by their addresses only.

use redis::{Client, ConnectionAddr, ConnectionInfo, RedisResult};

/// A server that can be tried.
pub(super) struct Target {
    pub(super) client: Client,
    pub(super) tls: bool,
    /// `HOST:PORT`, for logs, and to tell servers apart.
    pub(super) address: String,
}

impl Target {
    pub(super) fn new(info: ConnectionInfo) -> RedisResult<Self> {
        let address = info.addr().to_string();
        let tls = matches!(info.addr(), ConnectionAddr::TcpTls { .. });
        Ok(Self { client: Client::open(info)?, tls, address })
    }
}

/// How to reach servers of which only the address is to be told: credentials and certificates.
pub(super) struct Reach(ConnectionInfo);

impl Reach {
    /// As this one is reached.
    pub(super) fn new(like: ConnectionInfo) -> Self {
        Self(like)
    }

    /// The server at this address, if there can be one.
    pub(super) fn at(&self, host: &str, port: u16) -> Option<Target> {
        let host = host.to_owned();
        let address = match self.0.addr() {
            ConnectionAddr::TcpTls { insecure, tls_params, .. } => {
                ConnectionAddr::TcpTls { host, port, insecure: *insecure, tls_params: tls_params.clone() }
            }
            _ => ConnectionAddr::Tcp(host, port),
        };
        Target::new(self.0.clone().set_addr(address)).ok()
    }
}

/// Splits `HOST:PORT`, where the host may be an IPv6 address without brackets, or empty.
pub(super) fn split(address: &str) -> Option<(&str, u16)> {
    let (host, port) = address.rsplit_once(':')?;
    Some((host, port.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_are_split_at_the_last_colon() {
        assert_eq!(split("10.0.0.1:6379"), Some(("10.0.0.1", 6379)));
        assert_eq!(split("fd00::1:6379"), Some(("fd00::1", 6379)));
        assert_eq!(split(":6379"), Some(("", 6379)));
        assert_eq!(split("10.0.0.1"), None);
        assert_eq!(split("10.0.0.1:x"), None);
    }
}
