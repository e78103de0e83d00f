//! Source of client addresses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Source of a client's address when the peer is a trusted proxy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClientAddress {
    /// Networks of trusted proxies in CIDR notation, such as 10.0.0.0/8 or 2001:db8::/32. If the peer is a
    /// trusted proxy, the header is read from right to left: the first address that does not belong to a
    /// trusted proxy is the client's.
    #[schemars(length(min = 1, max = 64), inner(length(max = 64)))]
    pub trusted_proxies: Vec<String>,
    /// Header in which trusted proxies report the client's address:
    /// - XForwardedFor (default): X-Forwarded-For.
    /// - Forwarded: Forwarded (RFC 7239).
    #[serde(default)]
    pub header: AddressHeader,
}

/// A header that carries client addresses.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum AddressHeader {
    /// `X-Forwarded-For`.
    #[default]
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}
