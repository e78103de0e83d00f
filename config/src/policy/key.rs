//! The key of a limit as it is sent: the parts that make it, and what happens to a request that lacks one.

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

/// Treatment of a request that lacks a part of the key.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
pub enum OnMissing {
    /// All such requests share one counter.
    #[default]
    Shared,
    /// The limit does not apply to the request, if it has the part in no spelling. Otherwise as `Shared`.
    Skip,
    /// The request is rejected.
    Deny,
}
