//! The parts of a key as they are sent to sidecars, and the numbers of their kinds.

use std::net::IpAddr;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::expression::Expression;

/// One part of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum KeyPart {
    /// Value of the header with this name.
    Header(String),
    /// Value of the cookie with this name.
    Cookie(String),
    /// Value of the query parameter with this name.
    Query(String),
    /// The method.
    Method,
    /// The path in its normal form, without the query.
    Path,
    /// The host that the client names.
    Host,
    /// Service and method of a gRPC call.
    GrpcMethod,
    /// The first of these templates that the path matches, or a segment of the path.
    PathTemplate {
        /// The templates.
        templates: Vec<String>,
        /// Name of the segment that is the value; if absent, the template is.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        variable: Option<String>,
    },
    /// Value of an expression that is a text.
    Expression(Expression),
    /// Claim of a verified token.
    JwtClaim {
        /// Name of the kind of tokens.
        jwt: String,
        /// Name of the claim.
        claim: String,
    },
    /// Network of the client's address.
    ClientIp {
        /// Prefix length of the network of an IPv4 address.
        ipv4_prefix: u8,
        /// Prefix length of the network of an IPv6 address.
        ipv6_prefix: u8,
    },
}

impl KeyPart {
    /// Reports whether a client can choose the value of this part, unless something before the pod verifies it.
    #[must_use]
    pub fn is_chosen_by_client(&self) -> bool {
        match self {
            Self::Header(_)
            | Self::Cookie(_)
            | Self::Query(_)
            | Self::Method
            | Self::Path
            | Self::Host
            | Self::GrpcMethod
            | Self::PathTemplate { .. }
            | Self::Expression(_) => true,
            Self::ClientIp { .. } | Self::JwtClaim { .. } => false,
        }
    }

    /// Reports whether this part has as many values as a client likes, whatever the application serves.
    #[must_use]
    pub fn has_any_value(&self) -> bool {
        match self {
            Self::Header(_) | Self::Cookie(_) | Self::Query(_) | Self::Host => true,
            Self::Method
            | Self::Path
            | Self::GrpcMethod
            | Self::PathTemplate { .. }
            | Self::Expression(_)
            | Self::ClientIp { .. }
            | Self::JwtClaim { .. } => false,
        }
    }
}

// Kinds of parts, as they are hashed. They must never be renumbered: every key would change.
pub(super) const HEADER: u8 = 1;
pub(super) const IPV4: u8 = 2;
pub(super) const IPV6: u8 = 3;
pub(super) const COOKIE: u8 = 4;
pub(super) const QUERY: u8 = 5;
pub(super) const METHOD: u8 = 6;
pub(super) const PATH: u8 = 7;
pub(super) const HOST: u8 = 8;
pub(super) const GRPC_METHOD: u8 = 9;
pub(super) const JWT_CLAIM: u8 = 10;
pub(super) const PATH_TEMPLATE: u8 = 11;
pub(super) const EXPRESSION: u8 = 12;
pub(super) const MISSING: u8 = 255;

/// Returns the network of an address, with the prefix length of its family.
pub(super) fn network_of(address: IpAddr, ipv4_prefix: u8, ipv6_prefix: u8) -> Option<IpNet> {
    let prefix = if address.is_ipv4() { ipv4_prefix } else { ipv6_prefix };
    IpNet::new(address, prefix).ok().map(|network| network.trunc())
}
