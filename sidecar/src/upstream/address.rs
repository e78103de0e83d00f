//! The address of an application.

use std::fmt;
use std::net::SocketAddr;
use std::str::FromStr;

/// The address of an application: `HOST:PORT`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Upstream {
    authority: String,
    address: Option<SocketAddr>,
}

/// A text that is not the address of an application.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "invalid address of the application {0:?}: write HOST:PORT or http://HOST:PORT, without a path or TLS"
)]
pub struct InvalidUpstream(String);

impl Upstream {
    /// Returns the address as `HOST:PORT`.
    pub(crate) fn authority(&self) -> &str {
        &self.authority
    }

    /// Returns the socket address, unless the host is a name.
    pub(crate) fn address(&self) -> Option<SocketAddr> {
        self.address
    }
}

impl FromStr for Upstream {
    type Err = InvalidUpstream;

    fn from_str(text: &str) -> Result<Self, InvalidUpstream> {
        let invalid = || InvalidUpstream(text.to_owned());
        let plain = text.strip_prefix("http://").unwrap_or(text);
        let authority: http::uri::Authority =
            plain.strip_suffix('/').unwrap_or(plain).parse().map_err(|_| invalid())?;
        if authority.host().is_empty() || authority.as_str().contains('@') {
            return Err(invalid());
        }
        let authority = match authority.port_u16() {
            Some(0) => return Err(invalid()),
            Some(_) => authority.to_string(),
            // A port out of range, such as 99999.
            None if authority.as_str() != authority.host() => return Err(invalid()),
            None if text.starts_with("http://") => format!("{authority}:80"),
            None => return Err(invalid()),
        };
        Ok(Self { address: authority.parse().ok(), authority })
    }
}

impl fmt::Display for Upstream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.authority)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_upstream_is_a_host_and_a_port() {
        for good in ["127.0.0.1:8080", "http://127.0.0.1:8080", "http://127.0.0.1:8080/", "[::1]:80"] {
            assert!(good.parse::<Upstream>().unwrap().address.is_some(), "{good}");
        }
        assert_eq!("http://localhost".parse::<Upstream>().unwrap().to_string(), "localhost:80");
        for bad in ["", "8080", "localhost", "https://a:1", "http://a:1/x", "a:0", "a:99999", "u@a:1"] {
            assert!(bad.parse::<Upstream>().is_err(), "{bad}");
        }
    }
}
