//! Hints: the right form of a value that a schema refuses.

use regex::Regex;
use serde_json::{Map, Value};
use sluice_config::duration;
use sluice_config::duration::Duration;
use sluice_limiter::Millis;

use crate::crd::members_of;

/// Kinds of routes, which have no pods of their own.
const ROUTES: [&str; 6] = ["HTTPRoute", "GRPCRoute", "Gateway", "Ingress", "VirtualService", "IngressRoute"];

/// Names of fields that people know from elsewhere, and what they are here.
const ELSEWHERE: [(&str, &str); 6] = [
    ("period", "per"),
    ("interval", "per"),
    ("window", "per"),
    ("limit", "requests"),
    ("value", "exact"),
    ("status", "statusCode"),
];

/// Returns what an unknown field is meant to be, as a sentence with a space after it.
pub(super) fn meant(name: &str, known: &[&str], schema: &Value) -> String {
    if schema.pointer("/properties/parts/items/properties").is_some_and(|parts| parts.get(name).is_some()) {
        return format!("write {{parts: [{{{name}: ...}}]}}. ");
    }
    let elsewhere = ELSEWHERE.iter().find(|(other, here)| *other == name && known.contains(here));
    let meant = elsewhere.map(|(_, here)| *here).or_else(|| similar(name, known));
    meant.map_or(String::new(), |meant| format!("did you mean {meant}? "))
}

/// Returns the field that is spelled most like an unknown one.
fn similar<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let lower = name.to_ascii_lowercase();
    let likeness = |known: &str| strsim::normalized_damerau_levenshtein(&lower, &known.to_ascii_lowercase());
    let best = known.iter().max_by(|a, b| likeness(a).total_cmp(&likeness(b)))?;
    (likeness(best) > 0.6).then_some(best)
}

/// Says what a pattern of the schema allows.
pub(super) fn of_pattern(pattern: &str) -> String {
    let words = match pattern {
        "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$" => "a name has letters, digits and -, without spaces and colons",
        "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$" => {
            "use lower-case letters, digits and -, with a letter or a digit at both ends"
        }
        "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$" => {
            "use lower-case letters, digits, - and ., with a letter or a digit at both ends"
        }
        "^/" => "it begins with /",
        "^[A-Z][A-Z-]*$" => "write a method in upper case, such as GET",
        "^[A-Za-z_][A-Za-z0-9_]*$" | "^[A-Za-z0-9_]+$" => "use letters, digits and _",
        "^[A-Za-z_][A-Za-z0-9_.]*$" => "use letters, digits, _ and ., as in shop.Checkout",
        "^[1-5]([0-9][0-9]|xx)$" => "write a status such as 401, or a class such as 5xx",
        "^[A-Za-z0-9_$-]+([.][A-Za-z0-9_$-]+){0,7}$" => {
            "write names with dots between them, as in usage.total_tokens"
        }
        "^[!-~]+$" => "use visible ASCII characters, without spaces",
        "^[!-~]([ -~]*[!-~])?$" => "use visible ASCII characters, without spaces at the ends",
        "^[-._a-zA-Z0-9]+$" => "use letters, digits, -, _ and .",
        "^[-_A-Za-z0-9]{22}$" => "write the 22 characters that sluice peek prints as the key",
        "^[!-)+->A-Z^-z|~]+$" => r"use visible ASCII characters, without spaces and * ? @ [ \ ] { }",
        "^[A-Za-z0-9!#$&^_.+-]+/[A-Za-z0-9!#$&^_.+-]+( *;[ -~]*)?$" => {
            "write a content type, such as text/html; charset=utf-8"
        }
        _ if pattern.starts_with(r"^(\*\.)?") => {
            "write a host without scheme, port and path, such as shop.example or *.shop.example"
        }
        other => return format!("it must match the pattern {other}"),
    };
    words.to_owned()
}

/// Returns an example of a schema's form, for a value of another type than the expected one.
pub(super) fn form(value: &Value, schema: &Value, expected: &str) -> Option<String> {
    if let Some(text) = value.as_str() {
        let is_it = match expected {
            "integer" => text.parse::<i64>().is_ok(),
            "boolean" => matches!(text, "true" | "false"),
            _ => false,
        };
        if is_it {
            return Some(format!("{text}, without quotation marks"));
        }
    }
    if value.is_number() && schema.pointer("/properties/request/properties/number").is_some() {
        return Some(format!("{{request: {{number: {value}}}}}"));
    }
    let text = value.as_str();
    if expected == "array" && value.is_object() {
        return Some("- before it, or [ ] around it".to_owned());
    }
    if expected == "array" && schema["items"]["type"] == "string" {
        // Others, such as *, have a meaning in YAML.
        let is_plain =
            |text: &&str| text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_./".contains(&byte));
        return text.map(|text| {
            Some(text).filter(is_plain).map_or(format!("[{value}]"), |text| format!("[{text}]"))
        });
    }
    if schema["type"] != "object" {
        return None;
    }
    if let Some(rate) = text.and_then(|text| rate(text, schema)) {
        return Some(rate);
    }
    if let Some(members) = members_of(schema) {
        let is_meant = |name: &&str| text.is_some_and(|text| text.eq_ignore_ascii_case(name));
        let example = |name: &str| {
            let form = example(&schema["properties"][name], 0);
            match required(schema).find(|other| *other != name && !members.contains(other)) {
                Some(other) => format!("{{{other}: ..., {name}: {form}}}"),
                None => format!("{{{name}: {form}}}"),
            }
        };
        return match members.iter().find(|name| is_meant(name)) {
            Some(name) => Some(example(name)),
            None => {
                let others = members.iter().skip(1).map(|name| format!("`{name}`"));
                let others: Vec<_> = others.collect();
                let more = if others.is_empty() {
                    String::new()
                } else {
                    format!(", or with one of {}", others.join(", "))
                };
                Some(format!("{}{more}", example(members.first()?)))
            }
        };
    }
    Some(example(schema, 0))
}

/// Reads a rate as others write it, such as 10/s or 10r/m.
fn rate(text: &str, schema: &Value) -> Option<String> {
    let is_rate = schema["properties"].get("requests").is_some() && schema["properties"].get("per").is_some();
    let (number, unit) = text.split_once('/').filter(|_| is_rate)?;
    let number: u64 = number.trim().trim_end_matches('r').parse().ok()?;
    let per = match unit.trim() {
        "s" | "sec" | "second" => "1s",
        "m" | "min" | "minute" => "1m",
        "h" | "hour" => "1h",
        "d" | "day" => "24h",
        _ => return None,
    };
    Some(format!("{{requests: {number}, per: {per}}}"))
}

fn required(schema: &Value) -> impl Iterator<Item = &str> {
    schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str)
}

/// Returns an example of a value: an object with the fields that it needs.
fn example(schema: &Value, depth: usize) -> String {
    match schema["type"].as_str() {
        Some("integer" | "number") => "10".into(),
        Some("boolean") => "true".into(),
        Some("string") if schema["pattern"].as_str() == Some(duration::PATTERN) => "1m".into(),
        Some("array") if depth < 2 => format!("[{}]", example(&schema["items"], depth + 1)),
        Some("object") if depth < 2 => {
            let member = members_of(schema).and_then(|members| members.first().copied());
            let field = |name: &str| format!("{name}: {}", example(&schema["properties"][name], depth + 1));
            let mut names: Vec<&str> = required(schema).collect();
            names.extend(member.filter(|name| !names.contains(name)));
            // People write the number before its period.
            names.sort_by_key(|name| *name == "per");
            format!("{{{}}}", names.into_iter().map(field).collect::<Vec<_>>().join(", "))
        }
        _ => "...".into(),
    }
}

/// Returns what to add to the message about a value that is none of those allowed.
pub(super) fn of_value(text: &str, allowed: &[&str]) -> String {
    if let Some(meant) = allowed.iter().find(|allowed| allowed.eq_ignore_ascii_case(text)) {
        return format!(". Write {meant}");
    }
    if allowed.contains(&"Deployment") && ROUTES.contains(&text) {
        return ". A policy applies to pods: name the Deployment or the Service to which the route leads, and its paths in \
                `matches`"
            .into();
    }
    if allowed.contains(&"Deployment") && matches!(text, "Pod" | "Namespace") {
        return ". Use `selector` for the labels of pods; without either, a policy applies to all pods of its namespace".into();
    }
    String::new()
}

/// Says so if a text would be right in upper or in lower case.
pub(super) fn other_case(text: &str, pattern: &str) -> Option<String> {
    let regex = Regex::new(pattern).ok()?;
    [text.to_ascii_uppercase(), text.to_ascii_lowercase()]
        .into_iter()
        .find(|other| regex.is_match(other))
        .map(|other| format!("{text:?} is not allowed: write {other}"))
}

/// Returns what to add to the message about a list that is too long.
pub(super) fn of_list(path: &str) -> &'static str {
    match path {
        "spec.limits" => {
            ". Put the others into a second policy for the same pods. Of all policies together, a request may meet 32 limits: \
             give limits that exclude each other different `matches`, or make them `tiers` of one limit"
        }
        _ => "",
    }
}

/// Writes a fraction of a request as whole requests in a longer period.
pub(super) fn fraction(name: &str, value: &Value, fields: &Map<String, Value>) -> Option<String> {
    let fraction =
        value.as_f64().filter(|number| name == "requests" && *number > 0.0 && number.fract() > 0.0)?;
    let period = fields.get("per")?.as_str()?.parse::<Duration>().ok()?;
    let whole = (2..=1000u64).find_map(|times| {
        let requests = fraction * times as f64;
        let is_whole = (requests - requests.round()).abs() < 1e-9 && requests < 1e12;
        Some((requests.round() as u64, period.millis().checked_mul(times)?)).filter(|_| is_whole)
    });
    Some(match whole {
        Some((requests, millis)) => format!(
            "must be an integer: write requests: {requests}, per: {}, which is the same rate",
            Millis(millis)
        ),
        None => "must be an integer: use a longer period".into(),
    })
}
