//! The parts of keys, as policies have them.

use serde::{Deserialize, Serialize};

#[cfg(feature = "schema")]
use crate::schema::HEADER;

/// A part of a key: exactly one source, and whether operators may read its values.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase")]
pub struct KeyPart {
    /// The source of the values.
    #[serde(flatten)]
    pub source: KeySource,
    /// Whether the list of the clients that a sidecar denies most has the values of this part in clear. Leave it out for secrets, such as
    /// API keys. Default: false.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub public: Option<bool>,
    /// Key of the entry that has the value in descriptors, so that a client has one counter for requests and for questions of
    /// gateways. Only with `rls` in `matches`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253)))]
    pub descriptor_key: Option<String>,
}

/// The source of a part of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "schema", derive(schemars::JsonSchema))]
#[serde(rename_all = "camelCase", rename_all_fields = "camelCase")]
pub enum KeySource {
    /// The value of a header.
    Header {
        /// Name of the header, in upper or lower case. Not Host. A header that came only under another spelling, such as x_api_key for
        /// X-Api-Key, is not clear, unless spec.application has that habit.
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), regex(pattern = HEADER)))]
        name: String,
        /// Who verifies the value before a request reaches the pods, in your words, such as the name of a gateway that checks API keys and
        /// refuses unknown ones. It changes nothing but the warning that a client can get a new counter by sending another value.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253)))]
        verified_by: Option<String>,
    },
    /// The value of a cookie.
    Cookie {
        /// Name of the cookie. A cookie that came only under another spelling of the name, such as in another case, is not clear, unless
        /// spec.application has that habit.
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128), regex(pattern = HEADER)))]
        name: String,
    },
    /// The value of a query parameter, decoded.
    Query {
        /// Name of the parameter. One that came only under another spelling of the name, such as in another case or with brackets, is not
        /// clear, unless spec.application has that habit.
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128)))]
        name: String,
    },
    /// The method, in upper case. HEAD is another method than GET.
    Method {},
    /// The path in its normal form, without the query: all spellings that applications may take for the same path are one.
    Path {},
    /// The host that the client names, without port and in lower case.
    Host {},
    /// Service and method of a gRPC call, such as shop.Checkout/Pay. Other paths than those of two segments count as
    /// missing.
    GrpcMethod {},
    /// The template that the path matches, so that all its paths share a counter; or one segment of the path, such as the
    /// name of a tenant.
    PathTemplate {
        /// Templates such as /v1/orders/{id}: a name in braces stands for one segment that is not empty. The first one that the path
        /// matches is the value. Upper and lower case do not differ. Other paths count as missing.
        #[cfg_attr(
            feature = "schema",
            schemars(length(min = 1, max = 32), inner(length(min = 2, max = 1024), regex(pattern = "^/")))
        )]
        templates: Vec<String>,
        /// Name in braces in each template: the text of that segment is the value instead, in lower case. With the template
        /// /tenants/{tenant}/orders and the variable tenant, each tenant has a counter.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(
            feature = "schema",
            schemars(length(min = 1, max = 63), regex(pattern = "^[A-Za-z0-9_]+$"))
        )]
        variable: Option<String>,
    },
    /// An expression in CEL whose value is a string.
    Cel {
        /// Expression whose value is a string. Put it in single quotes. An empty string counts as missing, and an error as not clear.
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 1024)))]
        expression: String,
    },
    /// A claim of the request's token.
    JwtClaim {
        /// Name of the kind of tokens, one of spec.jwt.
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 63)))]
        jwt: String,
        /// Name of the claim, such as sub. Its value is a string of at most 256 bytes, an integer or a boolean. Others are not
        /// clear.
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 128)))]
        claim: String,
    },
    /// The client's address, or the network that it belongs to.
    #[serde(rename = "clientIP")]
    ClientIp {
        /// Prefix length of the network of an IPv4 address. All clients of a network share a counter. Default:
        /// 32, a counter for each address.
        #[serde(default = "default_ipv4_prefix")]
        #[cfg_attr(feature = "schema", schemars(with = "i32", range(min = 1, max = 32)))]
        ipv4_prefix: u8,
        /// Prefix length of the network of an IPv6 address. Default: 64, because one customer usually has a whole
        /// /64 network.
        #[serde(default = "default_ipv6_prefix")]
        #[cfg_attr(feature = "schema", schemars(with = "i32", range(min = 1, max = 128)))]
        ipv6_prefix: u8,
    },
    /// The value of an entry of a descriptor, in questions of gateways. Only in a limit that is for nothing else.
    Descriptor {
        /// Key of the entry.
        #[cfg_attr(feature = "schema", schemars(length(min = 1, max = 253)))]
        key: String,
    },
}

fn default_ipv4_prefix() -> u8 {
    32
}

fn default_ipv6_prefix() -> u8 {
    64
}

impl KeyPart {
    /// Returns the key of the entry that has the value in descriptors.
    #[must_use]
    pub fn entry_key(&self) -> Option<&str> {
        match &self.source {
            KeySource::Descriptor { key } => Some(key),
            _ => self.descriptor_key.as_deref(),
        }
    }
}

impl KeySource {
    /// Reports whether a client can choose the value of this part, unless something before the pod verifies it.
    #[must_use]
    pub fn is_chosen_by_client(&self) -> bool {
        match self {
            Self::Header { .. }
            | Self::Cookie { .. }
            | Self::Query { .. }
            | Self::Method {}
            | Self::Path {}
            | Self::Host {}
            | Self::GrpcMethod {}
            | Self::PathTemplate { .. }
            | Self::Cel { .. }
            | Self::Descriptor { .. } => true,
            Self::ClientIp { .. } | Self::JwtClaim { .. } => false,
        }
    }

    /// Reports whether this part has as many values as a client likes, whatever the application serves.
    #[must_use]
    pub fn has_any_value(&self) -> bool {
        match self {
            Self::Header { .. }
            | Self::Cookie { .. }
            | Self::Query { .. }
            | Self::Host {}
            | Self::Descriptor { .. } => true,
            Self::Method {}
            | Self::Path {}
            | Self::GrpcMethod {}
            | Self::PathTemplate { .. }
            | Self::Cel { .. }
            | Self::ClientIp { .. }
            | Self::JwtClaim { .. } => false,
        }
    }

    /// Reports whether the part is the client's address.
    #[must_use]
    pub fn is_client_address(&self) -> bool {
        matches!(self, Self::ClientIp { .. })
    }

    /// Returns the text of the expression whose value is the part.
    #[must_use]
    pub fn expression(&self) -> Option<&String> {
        match self {
            Self::Cel { expression } => Some(expression),
            _ => None,
        }
    }
}
