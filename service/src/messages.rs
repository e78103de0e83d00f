//! The messages of the protocols, generated from the definitions in `proto`, which have what is used.

pub use generated::envoy::config::core::v3::{
    Address, HeaderMap as Headers, HeaderValue, HeaderValueOption, Node, SocketAddress,
};
pub use generated::envoy::extensions::common::ratelimit::v3::RateLimitDescriptor;
pub use generated::envoy::extensions::common::ratelimit::v3::rate_limit_descriptor::{
    Entry, RateLimitOverride,
};
pub use generated::envoy::service::auth::v3::attribute_context::http_request::HeadersEntry;
pub use generated::envoy::service::auth::v3::attribute_context::{
    ContextExtensionsEntry, HttpRequest, Peer, Request,
};
pub use generated::envoy::service::auth::v3::check_response::HttpResponse;
pub use generated::envoy::service::auth::v3::{
    AttributeContext, CheckRequest, CheckResponse, DeniedHttpResponse, OkHttpResponse,
};
pub use generated::envoy::service::discovery::v3::{DiscoveryRequest, DiscoveryResponse};
pub use generated::envoy::service::ratelimit::v3::rate_limit_response::{
    Code, DescriptorStatus, RateLimit as CurrentLimit,
};
pub use generated::envoy::service::ratelimit::v3::{RateLimitRequest, RateLimitResponse};
pub use generated::envoy::r#type::v3::HttpStatus;
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

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use prost_reflect::DescriptorPool;

    use super::DEFINITIONS;

    /// Number and type of each field.
    fn fields(definitions: &[u8]) -> BTreeMap<String, String> {
        let pool = DescriptorPool::decode(definitions).unwrap();
        let fields = pool.all_messages().flat_map(|message| message.fields().collect::<Vec<_>>());
        let described = fields.map(|field| {
            let described = format!("{} {:?} {:?}", field.number(), field.cardinality(), field.kind());
            (field.full_name().to_owned(), described)
        });
        described.collect()
    }

    #[test]
    fn the_definitions_have_all_fields_of_the_messages_and_texts_in_place_of_bytes() {
        let defined = fields(DEFINITIONS);
        let generated = fields(include_bytes!(concat!(env!("OUT_DIR"), "/messages.binpb")));
        assert!(defined.keys().eq(generated.keys()));
        let differ = defined.iter().filter(|&(name, field)| *field != generated[name]);
        let differ: Vec<_> = differ.map(|(name, field)| (&**name, &**field, &*generated[name])).collect();
        let entry = "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry";
        let head = "envoy.service.auth.v3.AttributeContext.HttpRequest";
        let [name, header, host, method, path] =
            ["HeadersEntry.key", "HeadersEntry.value", "host", "method", "path"]
                .map(|field| format!("{head}.{field}"));
        let [key, value] = ["key", "value"].map(|field| format!("{entry}.{field}"));
        let expected = [
            ("envoy.config.core.v3.HeaderValue.key", "1 Optional string", "1 Optional bytes"),
            (&*key, "1 Optional string", "1 Optional bytes"),
            (&*value, "2 Optional string", "2 Optional bytes"),
            (&*name, "1 Optional string", "1 Optional bytes"),
            (&*header, "2 Optional string", "2 Optional bytes"),
            (&*host, "5 Optional string", "5 Optional bytes"),
            (&*method, "2 Optional string", "2 Optional bytes"),
            (&*path, "4 Optional string", "4 Optional bytes"),
            ("envoy.service.ratelimit.v3.RateLimitRequest.domain", "1 Optional string", "1 Optional bytes"),
        ];
        assert_eq!(differ, expected);
    }
}
