//! Lines of JSON, with the names of fields that Caddy, Traefik, Envoy, nginx and others use, or names that the user gives.

use std::fmt::Formatter;
use std::str::FromStr;

use serde::de::{DeserializeSeed, Deserializer, Error, MapAccess, SeqAccess, Visitor};
use serde_json::Value;

use super::{Fields, Reason, any_time, begin_time, time_of_number};

/// Names of fields, in the order in which they are tried, with spaces between them. A dot leads into an object. The begin of a request
/// precedes its end.
const TIME: &str = "start_time StartUTC time timestamp @timestamp ts time_iso8601 time_local msec date";
const METHOD: &str = "method request_method http_method request.method RequestMethod verb";
const TARGET: &str = "request_uri uri path url target request.uri request.path RequestPath http_path x-envoy-original-path \
    x-envoy-origin-path";
const QUERY: &str = "request_query args query_string query";
/// Lists such as X-Forwarded-For end with the address of the proxy's own client, also where Envoy calls another one that of the client.
const CLIENT: &str = "remote_addr client_ip remote_ip client request.client_ip request.remote_ip ClientHost ClientAddr clientip ip \
    x_forward_for x_forwarded_for x-forwarded-for downstream_remote_address downstream_direct_remote_address";
const STATUS: &str = "status status_code response_code DownstreamStatus response.status code";
const HOST: &str =
    "host http_host authority :authority vhost request.host RequestHost RequestAddr server_name";
/// Prefixes of fields that have headers, such as `http_user_agent` of nginx and `request_User-Agent` of Traefik.
const HEADER_PREFIXES: [&str; 2] = ["http_", "request_"];
/// Objects that have headers.
const HEADERS: [&str; 3] = ["headers", "request.headers", "request_headers"];

/// A field that the user names: `client=user.ip`, or `header:x-customer=customer_id`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(in crate::simulate) struct FieldName {
    part: JsonPart,
    path: String,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum JsonPart {
    Time,
    Method,
    Target,
    Client,
    Status,
    Header(String),
}

impl FromStr for FieldName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || {
            "write NAME=FIELD, where NAME is time, method, target, client, status or header:X, such as header:x-customer=user.id"
                .to_owned()
        };
        let (name, path) = text.split_once('=').filter(|(_, path)| !path.is_empty()).ok_or_else(wrong)?;
        let part = match name {
            "time" => JsonPart::Time,
            "method" => JsonPart::Method,
            "target" => JsonPart::Target,
            "client" => JsonPart::Client,
            "status" => JsonPart::Status,
            name => {
                let name = name.strip_prefix("header:").ok_or_else(wrong)?;
                let header =
                    http::HeaderName::from_str(name).map_err(|error| format!("{name:?}: {error}"))?;
                JsonPart::Header(header.to_string())
            }
        };
        Ok(Self { part, path: path.to_owned() })
    }
}

/// Fields that have a whole line: of Docker and Fluent Bit, of stern and others, and of journald.
const WRAPPED: &[&str] = &["log", "message", "MESSAGE"];

/// Returns the line that an object has in a field, unless there are two such fields.
pub(super) fn wrapped(line: &str) -> Option<String> {
    let object = object(line).ok()?;
    let mut found = WRAPPED.iter().filter_map(|name| object.get(name)?.as_str());
    let line = found.next()?;
    found.next().is_none().then(|| line.to_owned())
}

/// Reads an object in which no field has two values: a client may have chosen the second.
fn object(line: &str) -> Result<Value, Reason> {
    let mut is_repeated = false;
    let mut deserializer = serde_json::Deserializer::from_str(line);
    let value = Unique(&mut is_repeated).deserialize(&mut deserializer);
    let value = value.and_then(|value| deserializer.end().map(|()| value));
    value.ok().filter(Value::is_object).ok_or(if is_repeated { Reason::Repeated } else { Reason::Format })
}

/// Reads a value, and notes whether a field has two values.
struct Unique<'a>(&'a mut bool);

impl<'de> DeserializeSeed<'de> for Unique<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Unique<'_> {
    type Value = Value;

    fn expecting(&self, formatter: &mut Formatter<'_>) -> std::fmt::Result {
        formatter.write_str("JSON")
    }

    fn visit_bool<E: Error>(self, value: bool) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_i64<E: Error>(self, value: i64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_u64<E: Error>(self, value: u64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_f64<E: Error>(self, value: f64) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_str<E: Error>(self, value: &str) -> Result<Value, E> {
        Ok(value.into())
    }

    fn visit_unit<E: Error>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<Value, A::Error> {
        let mut values = Vec::new();
        while let Some(value) = list.next_element_seed(Unique(self.0))? {
            values.push(value);
        }
        Ok(Value::Array(values))
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        let mut values = serde_json::Map::new();
        while let Some(name) = map.next_key::<String>()? {
            let value = map.next_value_seed(Unique(self.0))?;
            if values.insert(name, value).is_some() {
                *self.0 = true;
                return Err(A::Error::custom("a field has two values"));
            }
        }
        Ok(Value::Object(values))
    }
}

/// Reads a line.
pub(super) fn read(line: &str, named: &[FieldName]) -> Result<Fields, Reason> {
    let object = Object::new(object(line)?);
    let text = |part: &JsonPart, names: &str| first(&object, named, part, names, text_of);
    let at = first(&object, named, &JsonPart::Time, TIME, |time| match time {
        Value::Number(number) => time_of_number(number.as_f64()?),
        Value::String(text) => any_time(text),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    });
    let mut fields = Fields {
        at,
        method: text(&JsonPart::Method, METHOD),
        target: text(&JsonPart::Target, TARGET),
        client: first(&object, named, &JsonPart::Client, CLIENT, addresses),
        status: text(&JsonPart::Status, STATUS).and_then(|status| status.parse().ok()),
        is_named: true,
        ..Fields::default()
    };
    // The line of the request, as nginx calls it.
    if let (None, Some(line)) = (&fields.target, object.get("request").and_then(Value::as_str)) {
        fields.request_line(line);
    }
    if let (Some(target), Some(query)) =
        (&mut fields.target, first(&object, &[], &JsonPart::Target, QUERY, text_of))
        && !target.contains('?')
    {
        target.push('?');
        target.push_str(&query);
    }
    // nginx and Caddy write the time of the end, and how many seconds the request took.
    let is_begin = named.iter().any(|name| name.part == JsonPart::Time)
        || ["start_time", "StartUTC"].iter().any(|name| object.get(name).is_some());
    if !is_begin {
        let is_caddy = object.get("request").is_some_and(Value::is_object);
        let took = object.get("request_time").or_else(|| object.get("duration").filter(|_| is_caddy));
        let took = took.and_then(|took| took.as_f64().or_else(|| took.as_str()?.parse().ok()));
        fields.at = fields.at.map(|end| begin_time(end, took));
    }
    if let Some(host) = HOST.split(' ').find_map(|name| text_of(object.value(name)?)) {
        fields.header("host", &host);
    }
    headers(&object, &mut fields);
    for name in named {
        if let JsonPart::Header(header) = &name.part {
            fields.headers.retain(|(known, _)| known != header);
            if let Some(text) = object.value(&name.path).and_then(text_of) {
                fields.header(header, &text);
            }
        }
    }
    Ok(fields)
}

/// Returns the first of some fields that can be read, or the one that the user names.
fn first<T>(
    object: &Object,
    named: &[FieldName],
    part: &JsonPart,
    names: &str,
    read: impl Fn(&Value) -> Option<T>,
) -> Option<T> {
    match named.iter().find(|name| name.part == *part) {
        Some(name) => read(object.value(&name.path)?),
        None => names.split(' ').find_map(|name| read(object.value(name)?)),
    }
}

fn headers(object: &Object, fields: &mut Fields) {
    let mut add = |name: &str, found: &Value| {
        let name = name.to_ascii_lowercase().replace('_', "-");
        let is_new = name != "host" && !fields.headers.iter().any(|(known, _)| *known == name);
        if is_new && http::HeaderName::from_str(&name).is_ok() {
            let first = found.as_array().and_then(|values| values.first()).unwrap_or(found);
            if let Some(text) = text_of(first) {
                fields.header(&name, &text);
            }
        }
    };
    for name in HEADERS {
        for (name, found) in object.value(name).and_then(Value::as_object).into_iter().flatten() {
            add(name, found);
        }
    }
    for (name, found) in object.fields.as_object().into_iter().flatten() {
        if let Some(header) = HEADER_PREFIXES.iter().find_map(|prefix| name.strip_prefix(prefix))
            && !METHOD.split(' ').chain(TARGET.split(' ')).any(|known| known == name)
        {
            add(header, found);
        }
    }
    for name in ["user_agent", "user-agent", "x_forwarded_for", "x-forwarded-for", "referer", "x-request-id"]
    {
        if let Some(found) = object.get(name) {
            add(name, found);
        }
    }
}

/// The object of a line. Most of the names that are tried are not in it, which is found out without comparing names.
struct Object {
    fields: Value,
    /// A bit for each name in it.
    names: u64,
}

impl Object {
    fn new(fields: Value) -> Self {
        let names =
            fields.as_object().into_iter().flatten().fold(0, |names, (name, _)| names | Self::bit(name));
        Self { fields, names }
    }

    /// Returns the bit of a name: others may have the same.
    fn bit(name: &str) -> u64 {
        let first = name.bytes().next().unwrap_or_default();
        1 << ((name.len() * 7 + usize::from(first)) % 64)
    }

    fn get(&self, name: &str) -> Option<&Value> {
        if self.names & Self::bit(name) == 0 { None } else { self.fields.get(name) }
    }

    /// Returns the value at a path. A field whose name has dots precedes objects.
    fn value(&self, path: &str) -> Option<&Value> {
        match self.get(path) {
            Some(found) => Some(found).filter(|found| !found.is_null()),
            None => {
                let (first, rest) = path.split_once('.')?;
                nested(self.get(first)?, rest)
            }
        }
    }
}

/// Returns the value at a path within a value.
fn nested<'a>(value: &'a Value, path: &str) -> Option<&'a Value> {
    if let Some(found) = value.get(path) {
        return Some(found).filter(|found| !found.is_null());
    }
    let (first, rest) = path.split_once('.')?;
    nested(value.get(first)?, rest)
}

/// Returns an address, or a list of addresses as X-Forwarded-For has it.
fn addresses(value: &Value) -> Option<String> {
    match value.as_array() {
        Some(list) => Some(list.iter().map(text_of).collect::<Option<Vec<_>>>()?.join(", ")),
        None => text_of(value),
    }
}

fn text_of(value: &Value) -> Option<String> {
    match value {
        Value::String(text) => Some(text.clone()).filter(|text| !text.is_empty() && text != "-"),
        Value::Number(number) => Some(number.to_string()),
        Value::Null | Value::Bool(_) | Value::Array(_) | Value::Object(_) => None,
    }
}
