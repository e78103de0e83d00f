//! Keys, which identify clients.

use serde::{Deserialize, Serialize};

/// One part of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KeyPart {
    /// Value of the header with this name.
    Header(String),
    /// Network of the client's address.
    #[serde(rename_all = "camelCase")]
    ClientIp {
        /// Prefix length of the network of an IPv4 address.
        ipv4_prefix: u8,
        /// Prefix length of the network of an IPv6 address.
        ipv6_prefix: u8,
    },
}

/// Treatment of a request that lacks a part of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnMissing {
    /// All such requests share one counter.
    Shared,
    /// The limit does not apply to the request.
    Skip,
    /// The request is rejected.
    Deny,
}
