//! Questions and answers in JSON, as protobuf writes these messages.

use std::io;
use std::sync::LazyLock;

use prost_reflect::{DescriptorPool, DynamicMessage, MessageDescriptor, SerializeOptions};
use serde::de::DeserializeSeed as _;
use serde_json::ser::Formatter;

use crate::messages::{DEFINITIONS, RateLimitRequest, RateLimitResponse};

/// Reads a question, or says which field is wrong.
pub(crate) fn question(json: &[u8]) -> Result<RateLimitRequest, String> {
    let mut from = serde_json::Deserializer::from_slice(json);
    let mut track = serde_path_to_error::Track::new();
    let tracked = serde_path_to_error::Deserializer::new(&mut from, &mut track);
    let message = match defined("RateLimitRequest")?.deserialize(tracked) {
        Ok(message) => message,
        Err(error) => return Err(serde_path_to_error::Error::new(track.path(), error).to_string()),
    };
    from.end().map_err(|error| error.to_string())?;
    message.transcode_to().map_err(|error| error.to_string())
}

/// Writes an answer.
pub(crate) fn answer(response: &RateLimitResponse) -> Result<Vec<u8>, String> {
    let mut message = DynamicMessage::new(defined("RateLimitResponse")?);
    message.transcode_from(response).map_err(|error| error.to_string())?;
    let mut json = serde_json::Serializer::with_formatter(Vec::new(), WholeNumbers);
    message.serialize_with_options(&mut json, &SerializeOptions::new()).map_err(|error| error.to_string())?;
    Ok(json.into_inner())
}

/// Returns the definition of a message of the door.
fn defined(name: &str) -> Result<MessageDescriptor, String> {
    static POOL: LazyLock<DescriptorPool> =
        LazyLock::new(|| DescriptorPool::decode(DEFINITIONS).unwrap_or_default());
    let name = format!("envoy.service.ratelimit.v3.{name}");
    POOL.get_message_by_name(&name).ok_or_else(|| format!("{name} is not defined"))
}

/// Writes whole numbers of metadata without a fraction, as ratelimit does.
struct WholeNumbers;

impl Formatter for WholeNumbers {
    fn write_f64<W: ?Sized + io::Write>(&mut self, writer: &mut W, number: f64) -> io::Result<()> {
        write!(writer, "{number}")
    }
}
