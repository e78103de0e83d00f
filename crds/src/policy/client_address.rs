//! Source of client addresses.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::client_address;
use sluice_config::client_address::{AddressHeader, network};

use crate::checks::field::Field;

/// Source of a client's address when the peer is a trusted proxy.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClientAddress {
    /// Networks of trusted proxies in CIDR notation, such as 10.0.0.0/8 or 2001:db8::/32. If the peer is a
    /// trusted proxy, the header is read from right to left: the first address that does not belong to a
    /// trusted proxy is the client's. If the list is empty, clients connect directly: no header is read.
    #[schemars(length(max = 64), inner(length(max = 64)))]
    pub trusted_proxies: Vec<String>,
    /// Header in which trusted proxies report the client's address:
    /// - XForwardedFor (default): X-Forwarded-For.
    /// - Forwarded: Forwarded (RFC 7239).
    /// - ProxyProtocol: the PROXY protocol, version 1 or 2, at the beginning of the connection. The application does not see it;
    ///   the sidecar adds the address to X-Forwarded-For.
    #[serde(default)]
    pub header: AddressHeader,
}

impl ClientAddress {
    pub(crate) fn compile(&self, at: &Field<'_>) -> client_address::ClientAddress {
        let network = |(n, text): (usize, &String)| at.at("trustedProxies").entry(n).accept(network(text));
        client_address::ClientAddress {
            trusted_proxies: self.trusted_proxies.iter().enumerate().filter_map(network).collect(),
            header: self.header,
        }
    }
}
