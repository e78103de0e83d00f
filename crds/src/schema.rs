//! Checks an object against the schema of the CRD, so that `sluice check` rejects everything that the API
//! server rejects. It also rejects unknown fields, which the API server only drops.

mod hints;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use regex::Regex;
use serde_json::Value;
use sluice_config::duration;
use sluice_config::duration::Duration;

use crate::checks::field::{UNKNOWN_FIELD, Violation};
use crate::crd::{crds, members_of};

/// Number of violations after which no further ones are looked for.
const MAX_VIOLATIONS: usize = 200;

/// Tells an operator whose CustomResourceDefinitions were upgraded before it what it lacks: a field or a value.
fn newer(lacks: &str) -> String {
    let version = env!("CARGO_PKG_VERSION");
    format!(
        ". If the CustomResourceDefinition has this {lacks}, it is newer than this version of Sluice, {version}, which must be upgraded"
    )
}

/// Returns the schemas of the kinds: of their whole objects.
fn schemas() -> &'static BTreeMap<&'static str, Value> {
    static SCHEMAS: OnceLock<BTreeMap<&'static str, Value>> = OnceLock::new();
    SCHEMAS.get_or_init(|| {
        let schema =
            |crd: Value| crd.pointer("/spec/versions/0/schema/openAPIV3Schema").cloned().unwrap_or_default();
        crds().into_iter().map(|(kind, crd)| (kind, schema(crd))).collect()
    })
}

/// Returns a pattern of a schema as a regular expression. Each of them is compiled once, which takes longer than all other checks of
/// an object.
fn compiled(pattern: &str) -> Option<Arc<Regex>> {
    static COMPILED: Mutex<BTreeMap<String, Arc<Regex>>> = Mutex::new(BTreeMap::new());
    let mut all = COMPILED.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(regex) = all.get(pattern) {
        return Some(regex.clone());
    }
    let regex = Arc::new(Regex::new(pattern).ok()?);
    all.insert(pattern.to_owned(), regex.clone());
    Some(regex)
}

/// Returns all violations of the schema of a kind in `spec`.
#[must_use]
pub fn violations(kind: &str, object: &Value) -> Vec<Violation> {
    let mut found = Vec::new();
    let schema = schemas().get(kind).unwrap_or(&Value::Null);
    let spec = schema.pointer("/properties/spec").unwrap_or(&Value::Null);
    match object.get("spec") {
        None | Some(Value::Null) => found.push(Violation::new("spec", "is required")),
        Some(value) => walk("spec", value, spec, &mut found),
    }
    found
}

/// Collects the violations of `schema` in `value` and in everything inside it.
fn walk(path: &str, value: &Value, schema: &Value, found: &mut Vec<Violation>) {
    if found.len() >= MAX_VIOLATIONS {
        return;
    }
    let mut wrong = |message: String| found.push(Violation::new(path, message));
    let expected = schema["type"].as_str().unwrap_or("object");
    if value.is_number() && schema["pattern"].as_str() == Some(duration::PATTERN) {
        return wrong(format!("must be a duration with a unit, such as {value}s"));
    }
    if !has_type(value, expected) {
        let form =
            hints::form(value, schema, expected).map_or(String::new(), |form| format!(": write {form}"));
        return wrong(format!("must be {}, not {}{form}", article(expected), article(type_of(value))));
    }
    match value {
        Value::String(text) => {
            let length = text.chars().count() as u64;
            if schema["minLength"].as_u64().is_some_and(|min| length < min) {
                wrong(if length == 0 {
                    "must not be empty".into()
                } else {
                    format!("is too short: at least {} characters are required", schema["minLength"])
                });
            } else if schema["maxLength"].as_u64().is_some_and(|max| length > max) {
                let max = &schema["maxLength"];
                wrong(format!("is too long: {length} characters, at most {max} are allowed"));
            } else if let Some(values) = schema["enum"].as_array().filter(|values| !values.contains(value)) {
                let allowed: Vec<_> = values.iter().filter_map(Value::as_str).collect();
                let hint = hints::of_value(text, &allowed);
                let newer = if hint.is_empty() { newer("value") } else { String::new() };
                wrong(format!("{text:?} is not allowed: use one of {}{hint}{newer}", allowed.join(", ")));
            } else if let Some(pattern) = schema["pattern"].as_str()
                && !compiled(pattern).is_some_and(|regex| regex.is_match(text))
            {
                // An invalid duration has a message of its own, which is easier to read than a pattern.
                let duration =
                    (pattern == duration::PATTERN).then(|| text.parse::<Duration>().err()).flatten();
                let other_case = || hints::other_case(text, pattern);
                let message = duration.or_else(other_case);
                wrong(
                    message.unwrap_or_else(|| {
                        format!("{text:?} is not allowed: {}", hints::of_pattern(pattern))
                    }),
                );
            }
        }
        Value::Number(number) => {
            let number = number.as_f64().unwrap_or(f64::NAN);
            let (min, max) = (schema["minimum"].as_f64(), schema["maximum"].as_f64());
            if min.is_some_and(|min| number < min) || max.is_some_and(|max| number > max) {
                let allowed = match (min, max) {
                    (Some(min), None) => format!("at least {min:.0} is required"),
                    (None, Some(max)) => format!("at most {max:.0} is allowed"),
                    (min, max) => {
                        format!(
                            "{:.0} to {:.0} are allowed",
                            min.unwrap_or_default(),
                            max.unwrap_or_default()
                        )
                    }
                };
                wrong(format!("{value} is out of range: {allowed}"));
            }
        }
        Value::Array(items) => {
            let length = items.len() as u64;
            if schema["minItems"].as_u64().is_some_and(|min| length < min) {
                wrong(match &schema["minItems"] {
                    one if *one == 1 => "must have at least one entry".into(),
                    min => format!("must have at least {min} entries"),
                });
            } else if schema["maxItems"].as_u64().is_some_and(|max| length > max) {
                let hint = hints::of_list(path);
                // The entries are not looked at: anybody can send millions to the webhook.
                return wrong(format!(
                    "has {length} entries: at most {} are allowed{hint}",
                    schema["maxItems"]
                ));
            }
            for (n, item) in items.iter().enumerate() {
                walk(&format!("{path}[{n}]"), item, &schema["items"], found);
            }
            if let Some(key) = schema.pointer("/x-kubernetes-list-map-keys/0").and_then(Value::as_str) {
                for (n, item) in items.iter().enumerate() {
                    if let Some(first) =
                        items[..n].iter().position(|other| !item[key].is_null() && other[key] == item[key])
                    {
                        found.push(Violation::new(
                            format!("{path}[{n}].{key}"),
                            format!("{} is already used by {path}[{first}]", item[key]),
                        ));
                    }
                }
            }
        }
        Value::Object(fields) => {
            let additional = &schema["additionalProperties"];
            for (name, value) in
                fields.iter().take_while(|_| found.len() < MAX_VIOLATIONS).collect::<Vec<_>>()
            {
                let path = format!("{path}.{name}");
                if let Some(message) = hints::fraction(name, value, fields) {
                    found.push(Violation::new(path, message));
                    continue;
                }
                match schema["properties"].get(name) {
                    Some(schema) => walk(&path, value, schema, found),
                    None if additional.is_object() => walk(&path, value, additional, found),
                    None => {
                        let known: Vec<_> = schema["properties"]
                            .as_object()
                            .into_iter()
                            .flat_map(|p| p.keys().map(String::as_str))
                            .collect();
                        let meant = hints::meant(name, &known, schema);
                        let fields = match &known[..] {
                            [] => "this object has no fields".to_owned(),
                            known => format!("known fields are {}", known.join(", ")),
                        };
                        let newer = if meant.is_empty() { newer("field") } else { String::new() };
                        let message = format!("{UNKNOWN_FIELD}: {meant}{fields}{newer}");
                        found.push(Violation::new(path, message));
                    }
                }
            }
            if let Some(members) = members_of(schema) {
                let set: Vec<_> = members.iter().copied().filter(|name| fields.contains_key(*name)).collect();
                if set.len() != 1 {
                    let found_members = match &set[..] {
                        [] => "none is set".to_owned(),
                        set => format!("{} are set", set.join(" and ")),
                    };
                    let message = match &members[..] {
                        [only] => format!("{only} must be set"),
                        _ => {
                            format!("exactly one of {} must be set, but {found_members}", members.join(", "))
                        }
                    };
                    found.push(Violation::new(path, message));
                }
            }
            for name in schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str) {
                if !fields.contains_key(name) {
                    found.push(Violation::new(format!("{path}.{name}"), "is required"));
                }
            }
        }
        Value::Bool(_) | Value::Null => {}
    }
}

fn has_type(value: &Value, expected: &str) -> bool {
    match expected {
        "integer" => value.is_i64() || value.is_u64(),
        "number" => value.is_number(),
        other => type_of(value) == other,
    }
}

fn type_of(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "boolean",
        Value::Number(n) if n.is_f64() => "number",
        Value::Number(_) => "integer",
        Value::String(_) => "string",
        Value::Array(_) => "array",
        Value::Object(_) => "object",
    }
}

/// Returns the name of a type with its article.
fn article(kind: &str) -> String {
    match kind {
        "null" => "null".into(),
        "array" => "a list".into(),
        "integer" => "an integer".into(),
        "object" => "an object".into(),
        other => format!("a {other}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_pattern_has_words() {
        fn patterns(schema: &Value, found: &mut Vec<String>) {
            found.extend(schema["pattern"].as_str().map(str::to_owned));
            match schema {
                Value::Object(fields) => fields.values().for_each(|value| patterns(value, found)),
                Value::Array(items) => items.iter().for_each(|value| patterns(value, found)),
                _ => {}
            }
        }
        let mut found = Vec::new();
        schemas().values().for_each(|schema| patterns(schema, &mut found));
        found.retain(|pattern| pattern != duration::PATTERN);
        assert!(found.len() > 50, "{found:?}");
        for pattern in found {
            assert!(!hints::of_pattern(&pattern).contains(&pattern), "{pattern}");
        }
    }
}
