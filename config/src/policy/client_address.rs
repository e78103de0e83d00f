//! Source of client addresses.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

/// Source of a client's address when the peer is a trusted proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientAddress {
    /// Networks of the proxies whose header is believed.
    pub trusted_proxies: Vec<IpNet>,
    /// Header in which these proxies report the client's address.
    pub header: AddressHeader,
}

/// A header that carries client addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AddressHeader {
    /// `X-Forwarded-For`.
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}
