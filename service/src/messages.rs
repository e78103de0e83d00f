//! The messages of the protocols, generated from the definitions in `proto`, which have what is used.

pub use generated::envoy::config::core::v3::{HeaderValue, Node};
pub use generated::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub use generated::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
pub use generated::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
pub use generated::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit as CurrentLimit,
};
pub use generated::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
pub use generated::google::rpc::Status as RpcStatus;
pub use generated::ratelimit::config::ratelimit::v3::{
    RateLimitConfig, RateLimitDescriptor as ConfigDescriptor, RateLimitPolicy as ConfigRateLimit,
};

/// The code of a request that may pass.
pub const OK: i32 = Code::Ok as i32;
/// The code of a request that is over its limit.
pub const OVER_LIMIT: i32 = Code::OverLimit as i32;

/// The definitions, as a `google.protobuf.FileDescriptorSet` in bytes.
pub(crate) const DEFINITIONS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/definitions.binpb"));

#[allow(clippy::all, missing_docs, unreachable_pub)]
mod generated {
    include!(concat!(env!("OUT_DIR"), "/messages.rs"));
}
