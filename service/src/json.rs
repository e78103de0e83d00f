//! Questions and answers in JSON, as protobuf writes these messages.

use std::fmt::Display;

use prost_types::value::Kind;
use prost_types::{Struct, Value};
use serde::{Deserialize, Serialize};
use sluice_config::descriptor::RateUnit;

use crate::messages::{
    Entry, HeaderValue, OK, OVER_LIMIT, RateLimitDescriptor, RateLimitOverride, RateLimitRequest,
    RateLimitResponse,
};

/// A question in JSON, as protobuf writes it. Numbers may be texts, and enums numbers; null is the default.
#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub(crate) struct JsonQuestion {
    domain: Option<String>,
    descriptors: Option<Vec<JsonDescriptor>>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonDescriptor {
    entries: Option<Vec<JsonEntry>>,
    limit: Option<JsonOverride>,
    #[serde(alias = "hits_addend")]
    hits_addend: Option<Number>,
    #[serde(alias = "is_negative_hits")]
    is_negative_hits: Option<bool>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonEntry {
    key: Option<String>,
    value: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct JsonOverride {
    #[serde(alias = "requests_per_unit")]
    requests_per_unit: Option<Number>,
    unit: Option<Number>,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonLimit {
    #[serde(skip_serializing_if = "String::is_empty")]
    name: String,
    requests_per_unit: u32,
    unit: String,
}

/// A number of 64 bits, which JSON of protobuf writes as a text.
#[derive(Debug, Deserialize)]
#[serde(untagged)]
enum Number {
    Number(u64),
    Text(String),
}

/// An answer in JSON, as protobuf writes it.
#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct JsonAnswer {
    overall_code: &'static str,
    statuses: Vec<JsonStatus>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    response_headers_to_add: Vec<JsonHeader>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    request_headers_to_add: Vec<JsonHeader>,
    #[serde(skip_serializing_if = "Option::is_none")]
    dynamic_metadata: Option<serde_json::Value>,
}

#[derive(Debug, Serialize)]
struct JsonHeader {
    key: String,
    value: String,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
struct JsonStatus {
    code: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    current_limit: Option<JsonLimit>,
    #[serde(skip_serializing_if = "is_zero")]
    limit_remaining: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_until_reset: Option<String>,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_zero(number: &u32) -> bool {
    *number == 0
}

impl Number {
    /// Reads a number; `field` has it.
    fn read<T: TryFrom<u64>>(self, field: &str) -> Result<T, String> {
        let wrong = |text: &dyn Display| format!("{field}: {text} is no number that it can have");
        let number = match self {
            Self::Number(number) => number,
            Self::Text(text) => text.parse().map_err(|_| wrong(&format!("{text:?}")))?,
        };
        T::try_from(number).map_err(|_| wrong(&number))
    }
}

impl JsonQuestion {
    /// Returns the message, or what is wrong with a field.
    pub(crate) fn into_request(self) -> Result<RateLimitRequest, String> {
        let descriptors = self.descriptors.unwrap_or_default().into_iter().map(JsonDescriptor::into_message);
        let hits_addend = self.hits_addend.map(|hits| hits.read("hitsAddend")).transpose()?;
        Ok(RateLimitRequest {
            domain: self.domain.unwrap_or_default().into(),
            descriptors: descriptors.collect::<Result<_, _>>()?,
            hits_addend: hits_addend.unwrap_or_default(),
        })
    }
}

impl JsonDescriptor {
    fn into_message(self) -> Result<RateLimitDescriptor, String> {
        let Self { entries, limit, hits_addend, is_negative_hits } = self;
        let text = |text: Option<String>| text.unwrap_or_default().into();
        let entries = entries.unwrap_or_default().into_iter();
        let hits_addend = hits_addend.map(|hits| hits.read("descriptors.hitsAddend")).transpose()?;
        Ok(RateLimitDescriptor {
            entries: entries
                .map(|JsonEntry { key, value }| Entry { key: text(key), value: text(value) })
                .collect(),
            limit: limit.map(JsonOverride::into_message).transpose()?,
            hits_addend,
            is_negative_hits: is_negative_hits.unwrap_or_default(),
        })
    }
}

impl JsonOverride {
    fn into_message(self) -> Result<RateLimitOverride, String> {
        let requests =
            self.requests_per_unit.map(|number| number.read("limit.requestsPerUnit")).transpose()?;
        let unit = match self.unit {
            None => 0,
            Some(Number::Number(number)) => Number::Number(number).read("limit.unit")?,
            Some(Number::Text(name)) => {
                RateUnit::from_name(&name).ok_or_else(|| format!("limit.unit: unknown unit {name:?}"))? as i32
            }
        };
        Ok(RateLimitOverride { requests_per_unit: requests.unwrap_or_default(), unit })
    }
}

/// Writes metadata in JSON.
fn json_struct(fields: Struct) -> serde_json::Value {
    fields.fields.into_iter().map(|(key, value)| (key, json_value(value))).collect()
}

fn json_value(value: Value) -> serde_json::Value {
    match value.kind {
        None | Some(Kind::NullValue(_)) => serde_json::Value::Null,
        // A whole number is written without a fraction.
        Some(Kind::NumberValue(number)) if number.fract() == 0.0 && number.abs() < 1e15 => {
            (number as i64).into()
        }
        Some(Kind::NumberValue(number)) => number.into(),
        Some(Kind::StringValue(text)) => text.into(),
        Some(Kind::BoolValue(flag)) => flag.into(),
        Some(Kind::StructValue(fields)) => json_struct(fields),
        Some(Kind::ListValue(list)) => list.values.into_iter().map(json_value).collect(),
    }
}

fn code(code: i32) -> &'static str {
    match code {
        OK => "OK",
        OVER_LIMIT => "OVER_LIMIT",
        _ => "UNKNOWN",
    }
}

impl From<RateLimitResponse> for JsonAnswer {
    fn from(response: RateLimitResponse) -> Self {
        let statuses = response.statuses.into_iter().map(|status| JsonStatus {
            code: code(status.code),
            current_limit: status.current_limit.map(|limit| JsonLimit {
                name: limit.name,
                requests_per_unit: limit.requests_per_unit,
                unit: RateUnit::from_number(limit.unit)
                    .map_or("UNKNOWN", RateUnit::as_str)
                    .to_ascii_uppercase(),
            }),
            limit_remaining: status.limit_remaining,
            duration_until_reset: status
                .duration_until_reset
                .map(|duration| format!("{}s", duration.seconds)),
        });
        let headers = |headers: Vec<HeaderValue>| {
            let headers = headers.into_iter();
            headers.map(|header| JsonHeader { key: header.key, value: header.value }).collect()
        };
        Self {
            overall_code: code(response.overall_code),
            statuses: statuses.collect(),
            response_headers_to_add: headers(response.response_headers_to_add),
            request_headers_to_add: headers(response.request_headers_to_add),
            dynamic_metadata: response.dynamic_metadata.map(json_struct),
        }
    }
}
