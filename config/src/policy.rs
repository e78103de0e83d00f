//! A compiled policy as it travels from the operator to the sidecars. Old sidecars live for months: a field that a
//! sidecar does not know is ignored, a kind of limit that it does not know makes it refuse the policy.

use std::fmt;

use ipnet::IpNet;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

pub use crate::concurrency::{AdaptiveKind, CompiledAdaptive};
pub use crate::rate::{Alignment, Bound, Capacity, CompiledRate, Elastic, RateAlgorithm, Window};

/// A policy, compiled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompiledPolicy {
    /// Namespace of the policy object.
    pub namespace: String,
    /// Name of the policy object.
    pub name: String,
    /// What to do with a denial.
    pub mode: Mode,
    /// What to do when the store cannot answer.
    pub on_store_failure: OnStoreFailure,
    /// Where requests are counted; absent: in the store, each by itself.
    #[serde(default, skip_serializing_if = "Consistency::is_strict")]
    pub consistency: Consistency,
    /// Where a client's address comes from; absent: the peer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_address: Option<ClientAddress>,
    /// The limits. All that match a request must hold.
    pub limits: Vec<CompiledLimit>,
}

/// What to do with a denial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Mode {
    /// Reject the request.
    Enforce,
    /// Decide and report, never reject.
    Shadow,
}

/// What to do when the store cannot answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnStoreFailure {
    /// Let requests pass.
    Allow,
    /// Reject requests.
    Deny,
    /// Count in each pod by its share of the number.
    Share,
}

/// Where requests are counted.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Consistency {
    /// In the store, with a question a request.
    #[default]
    Strict,
    /// In the store, in blocks that a pod takes in advance, where the limit allows it.
    Leased,
    /// In each pod by its share of the number, without the store.
    Local,
}

impl Consistency {
    fn is_strict(&self) -> bool {
        *self == Self::Strict
    }
}

/// Where a client's address comes from when the peer is a trusted proxy.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ClientAddress {
    /// Peers whose word counts.
    pub trusted_proxies: Vec<IpNet>,
    /// The header in which they say it.
    pub header: AddressHeader,
}

/// A header that names client addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum AddressHeader {
    /// `X-Forwarded-For`.
    XForwardedFor,
    /// `Forwarded` (RFC 7239).
    Forwarded,
}

/// A limit, compiled.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CompiledLimit {
    /// Its name, unique in the policy.
    pub name: String,
    /// What to do with a denial by this limit.
    pub mode: Mode,
    /// Which requests: any entry; empty: all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub matches: Vec<Match>,
    /// Whose: the parts of the key; empty: one counter for all.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub key: Vec<KeyPart>,
    /// What to do with a request that lacks a part.
    pub on_missing: OnMissing,
    /// How many: all must hold.
    pub rates: Vec<CompiledRate>,
}

/// What a request must have: everything that is said.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// Its path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// Its method, one of these; empty: any.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Its headers, all of these.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderMatch>,
}

/// A test of the path.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PathMatch {
    /// The whole path.
    Exact(String),
    /// Whole segments at its beginning: `/v1` is a prefix of `/v1` and `/v1/x`, not of `/v10`.
    Prefix(String),
    /// A regular expression that the whole path must match.
    Regex(String),
}

/// A test of one header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderMatch {
    /// The header's name.
    pub name: String,
    /// What one of its values must be.
    pub value: ValueMatch,
}

/// A test of a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ValueMatch {
    /// The whole value.
    Exact(String),
    /// A regular expression that the whole value must match.
    Regex(String),
    /// That there is one (`true`), or none (`false`).
    Present(bool),
}

/// A part of a key.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum KeyPart {
    /// A header's value.
    Header(String),
    /// The client's address, cut to its network.
    #[serde(rename_all = "camelCase")]
    ClientIp {
        /// Bits kept of an IPv4 address.
        ipv4_prefix: u8,
        /// Bits kept of an IPv6 address.
        ipv6_prefix: u8,
    },
}

/// What to do with a request that lacks a part of the key.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnMissing {
    /// One counter for all that lack one.
    Shared,
    /// The limit is not about them.
    Skip,
    /// Reject them.
    Deny,
}

/// What a policy compiled to, in 32 hexadecimal digits: the first half of the SHA-256 of its JSON as it travels.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct PolicyHash(String);

impl PolicyHash {
    /// The hash of a policy's JSON, byte for byte as it travels.
    #[must_use]
    pub fn of(json: &str) -> Self {
        use fmt::Write as _;
        let mut text = String::with_capacity(32);
        for byte in &Sha256::digest(json)[..16] {
            let _ = write!(text, "{byte:02x}");
        }
        Self(text)
    }
}

impl fmt::Display for PolicyHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl CompiledPolicy {
    /// The policy as it travels.
    #[must_use]
    pub fn to_json(&self) -> String {
        // Structs, lists and strings only: there is nothing that could fail.
        serde_json::to_string(self).unwrap_or_default()
    }
}
