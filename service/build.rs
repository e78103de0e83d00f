//! Compiles the definitions of protocols in `proto`: to messages in Rust, and to descriptors for tools that ask what there is.

use std::error::Error;
use std::path::PathBuf;

use prost::Message as _;
use prost_build::Config;
use prost_types::DescriptorProto;
use prost_types::field_descriptor_proto::Type;

/// The files. Those that they import are compiled as well.
const FILES: [&str; 4] = [
    "envoy/service/auth/v3/external_auth.proto",
    "envoy/service/discovery/v3/discovery.proto",
    "envoy/service/ratelimit/v3/rls.proto",
    "ratelimit/config/ratelimit/v3/rls_conf.proto",
];

/// Texts that are bytes in Rust, because a gateway copies header bytes into them as they are. A text that is not UTF-8 would be an
/// error of the call, after which Envoy lets the request pass.
const BYTES: [&str; 9] = [
    "envoy.config.core.v3.HeaderValue.key",
    "envoy.service.auth.v3.AttributeContext.HttpRequest.method",
    "envoy.service.auth.v3.AttributeContext.HttpRequest.path",
    "envoy.service.auth.v3.AttributeContext.HttpRequest.host",
    "envoy.service.auth.v3.AttributeContext.HttpRequest.HeadersEntry.key",
    "envoy.service.auth.v3.AttributeContext.HttpRequest.HeadersEntry.value",
    "envoy.service.ratelimit.v3.RateLimitRequest.domain",
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry.key",
    "envoy.extensions.common.ratelimit.v3.RateLimitDescriptor.Entry.value",
];

/// The entries of maps that are lists in Rust, which is the same in bytes: they are read once, so nobody needs a table.
const LISTS: [&str; 2] = [
    "envoy.service.auth.v3.AttributeContext.ContextExtensionsEntry",
    "envoy.service.auth.v3.AttributeContext.HttpRequest.HeadersEntry",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo::rerun-if-changed=proto");
    let folder = PathBuf::from(std::env::var("OUT_DIR")?);
    let mut messages = protox::compile(FILES, ["proto"])?;
    let mut definitions = messages.clone();
    for file in &mut definitions.file {
        file.source_code_info = None;
    }
    std::fs::write(folder.join("definitions.binpb"), definitions.encode_to_vec())?;
    for file in &mut messages.file {
        let package = file.package().to_owned();
        for message in &mut file.message_type {
            adapt(&package, message);
        }
    }
    // A test compares them.
    std::fs::write(folder.join("messages.binpb"), messages.encode_to_vec())?;
    // The entries of a map have no comments.
    let lists = LISTS.map(|list| format!(".{list}"));
    Config::new().bytes(["."]).disable_comments(lists).include_file("messages.rs").compile_fds(messages)?;
    Ok(())
}

/// Makes bytes of the fields of a message that are in [`BYTES`], and lists of the maps in [`LISTS`].
fn adapt(parent: &str, message: &mut DescriptorProto) {
    let path = format!("{parent}.{}", message.name());
    if LISTS.contains(&&*path) {
        message.options = None;
    }
    for field in &mut message.field {
        if BYTES.contains(&&*format!("{path}.{}", field.name())) {
            field.set_type(Type::Bytes);
        }
    }
    for nested in &mut message.nested_type {
        adapt(&path, nested);
    }
}
