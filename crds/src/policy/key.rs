//! Keys, which identify clients.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Identifies the client that sent a request.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Key {
    /// Parts of the key. Requests that differ in any part belong to different clients.
    #[schemars(length(min = 1, max = 8))]
    pub parts: Vec<KeyPart>,
    /// Treatment of a request that lacks a part of the key. A header that is empty or repeated counts as
    /// missing.
    /// - Shared (default): all such requests share one counter.
    /// - Skip: the limit does not apply to the request.
    /// - Deny: the request is rejected.
    #[serde(default)]
    pub on_missing: OnMissing,
}

/// A part of a key. Exactly one field is required.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.header), has(self.clientIP)].filter(x, x).size() == 1").message("exactly one of header, clientIP must be set"))]
pub struct KeyPart {
    /// The value of a header.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<HeaderKey>,
    /// The client's address, or the network that it belongs to.
    #[serde(default, rename = "clientIP", skip_serializing_if = "Option::is_none")]
    pub client_ip: Option<ClientIpKey>,
}

/// A header as a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HeaderKey {
    /// Name of the header, in upper or lower case.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    pub name: String,
}

/// The client's address as a part of a key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct ClientIpKey {
    /// Prefix length of the network of an IPv4 address. All clients of a network share a counter. Default:
    /// 32, a counter for each address.
    #[serde(default, rename = "ipv4Prefix", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 32))]
    pub ipv4_prefix: Option<i32>,
    /// Prefix length of the network of an IPv6 address. Default: 64, because one customer usually has a whole
    /// /64 network.
    #[serde(default, rename = "ipv6Prefix", skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 1, max = 128))]
    pub ipv6_prefix: Option<i32>,
}

/// Treatment of a request that lacks a part of the key.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnMissing {
    /// All such requests share one counter.
    #[default]
    Shared,
    /// The limit does not apply to the request.
    Skip,
    /// The request is rejected.
    Deny,
}
