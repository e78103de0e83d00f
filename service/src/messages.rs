//! The messages of the protocols, as far as they are used. Fields are numbered as in Envoy's definitions.
//!
//! They are written here, and not taken from a library, because a gateway copies header bytes into texts of descriptors as they are:
//! those fields are bytes here. A text that is not UTF-8 would be an error of the call, after which Envoy lets the request pass.

use bytes::Bytes;
use prost::Message;
use prost_types::{Duration, Struct};

/// `envoy.service.ratelimit.v3.RateLimitRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitRequest {
    /// The domain.
    #[prost(bytes = "bytes", tag = "1")]
    pub domain: Bytes,
    /// The descriptors.
    #[prost(message, repeated, tag = "2")]
    pub descriptors: Vec<RateLimitDescriptor>,
    /// Hits of the descriptors that name none; 0 means 1.
    #[prost(uint32, tag = "3")]
    pub hits_addend: u32,
}

/// `envoy.extensions.common.ratelimit.v3.RateLimitDescriptor`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitDescriptor {
    /// The pairs.
    #[prost(message, repeated, tag = "1")]
    pub entries: Vec<Entry>,
    /// A rate in place of that of the rule.
    #[prost(message, optional, tag = "2")]
    pub limit: Option<RateLimitOverride>,
    /// Hits of this descriptor.
    #[prost(message, optional, tag = "3")]
    pub hits_addend: Option<u64>,
    /// Whether the hits are given back.
    #[prost(bool, tag = "4")]
    pub is_negative_hits: bool,
}

/// A pair of a descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct Entry {
    /// The key.
    #[prost(bytes = "bytes", tag = "1")]
    pub key: Bytes,
    /// The value.
    #[prost(bytes = "bytes", tag = "2")]
    pub value: Bytes,
}

/// A rate that a descriptor brings along.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct RateLimitOverride {
    /// Number of requests.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit.
    #[prost(int32, tag = "2")]
    pub unit: i32,
}

/// `envoy.service.ratelimit.v3.RateLimitResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitResponse {
    /// [`OK`] or [`OVER_LIMIT`].
    #[prost(int32, tag = "1")]
    pub overall_code: i32,
    /// A status for each descriptor.
    #[prost(message, repeated, tag = "2")]
    pub statuses: Vec<DescriptorStatus>,
    /// Headers for the response to the client.
    #[prost(message, repeated, tag = "3")]
    pub response_headers_to_add: Vec<HeaderValue>,
    /// Headers for the request on its way to the application.
    #[prost(message, repeated, tag = "4")]
    pub request_headers_to_add: Vec<HeaderValue>,
    /// Metadata for the filters of the gateway.
    #[prost(message, optional, tag = "6")]
    pub dynamic_metadata: Option<Struct>,
}

/// The code of a request that may pass.
pub const OK: i32 = 1;
/// The code of a request that is over its limit.
pub const OVER_LIMIT: i32 = 2;

/// The status of a descriptor.
#[derive(Clone, PartialEq, Message)]
pub struct DescriptorStatus {
    /// [`OK`] or [`OVER_LIMIT`].
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The limit that counts it.
    #[prost(message, optional, tag = "2")]
    pub current_limit: Option<CurrentLimit>,
    /// Hits that remain.
    #[prost(uint32, tag = "3")]
    pub limit_remaining: u32,
    /// Time until there are more.
    #[prost(message, optional, tag = "4")]
    pub duration_until_reset: Option<Duration>,
}

/// A limit.
#[derive(Clone, PartialEq, Message)]
pub struct CurrentLimit {
    /// Number of requests.
    #[prost(uint32, tag = "1")]
    pub requests_per_unit: u32,
    /// The unit.
    #[prost(int32, tag = "2")]
    pub unit: i32,
    /// The name of the rule.
    #[prost(string, tag = "3")]
    pub name: String,
    /// The period is the unit so many times, if it is not one.
    #[prost(uint32, tag = "4")]
    pub unit_multiplier: u32,
}

/// A header.
#[derive(Clone, PartialEq, Message)]
pub struct HeaderValue {
    /// The name.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value.
    #[prost(string, tag = "2")]
    pub value: String,
}

/// `envoy.service.discovery.v3.DiscoveryRequest`.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryRequest {
    /// The version that was accepted last.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// This process.
    #[prost(message, optional, tag = "2")]
    pub node: Option<Node>,
    /// The type of resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The nonce of the response that this answers.
    #[prost(string, tag = "5")]
    pub response_nonce: String,
    /// Why that response is refused.
    #[prost(message, optional, tag = "6")]
    pub error_detail: Option<RpcStatus>,
}

/// The identity of a process.
#[derive(Clone, PartialEq, Message)]
pub struct Node {
    /// The id.
    #[prost(string, tag = "1")]
    pub id: String,
    /// Further properties.
    #[prost(message, optional, tag = "3")]
    pub metadata: Option<Struct>,
}

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
pub struct RpcStatus {
    /// The code.
    #[prost(int32, tag = "1")]
    pub code: i32,
    /// The reason.
    #[prost(string, tag = "2")]
    pub message: String,
}

/// `envoy.service.discovery.v3.DiscoveryResponse`.
#[derive(Clone, PartialEq, Message)]
pub struct DiscoveryResponse {
    /// The version.
    #[prost(string, tag = "1")]
    pub version_info: String,
    /// The resources: all that there are.
    #[prost(message, repeated, tag = "2")]
    pub resources: Vec<prost_types::Any>,
    /// The type of the resources.
    #[prost(string, tag = "4")]
    pub type_url: String,
    /// The nonce.
    #[prost(string, tag = "5")]
    pub nonce: String,
}

/// `ratelimit.config.ratelimit.v3.RateLimitConfig`.
#[derive(Clone, PartialEq, Message)]
pub struct RateLimitConfig {
    /// Name of the resource.
    #[prost(string, tag = "1")]
    pub name: String,
    /// The domain.
    #[prost(string, tag = "2")]
    pub domain: String,
    /// Its rules.
    #[prost(message, repeated, tag = "3")]
    pub descriptors: Vec<ConfigDescriptor>,
}

/// A level of the rules.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigDescriptor {
    /// The key.
    #[prost(string, tag = "1")]
    pub key: String,
    /// The value; empty for any.
    #[prost(string, tag = "2")]
    pub value: String,
    /// The rule.
    #[prost(message, optional, tag = "3")]
    pub rate_limit: Option<ConfigRateLimit>,
    /// The next level.
    #[prost(message, repeated, tag = "4")]
    pub descriptors: Vec<ConfigDescriptor>,
    /// Whether the rule denies nothing.
    #[prost(bool, tag = "5")]
    pub shadow_mode: bool,
    /// Whether metrics have the values.
    #[prost(bool, tag = "6")]
    pub detailed_metric: bool,
    /// Whether the rule only fills the metadata of answers.
    #[prost(bool, tag = "7")]
    pub quota_mode: bool,
}

/// A rule.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigRateLimit {
    /// The unit.
    #[prost(int32, tag = "1")]
    pub unit: i32,
    /// Number of requests.
    #[prost(uint32, tag = "2")]
    pub requests_per_unit: u32,
    /// Whether everything is admitted.
    #[prost(bool, tag = "3")]
    pub unlimited: bool,
    /// The name.
    #[prost(string, tag = "4")]
    pub name: String,
    /// The names of the rules that it replaces.
    #[prost(message, repeated, tag = "5")]
    pub replaces: Vec<ConfigReplace>,
}

/// A rule that another one replaces.
#[derive(Clone, PartialEq, Message)]
pub struct ConfigReplace {
    /// The name.
    #[prost(string, tag = "1")]
    pub name: String,
}
