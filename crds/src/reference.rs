//! The reference of the API for people: a page in Markdown with every field of the CRDs.

use std::collections::VecDeque;
use std::fmt::Write as _;

use serde_json::{Map, Value};

use crate::crd::{crds, members_of};

/// Beginning of the page.
const HEAD: &str = "<!-- Generated from crds/src by `make generate`. Do not edit. -->

# API reference

Every field of the objects of Sluice, in the group `sluice.dev`, version `v1alpha1`. `kubectl explain --recursive
ratelimitpolicies.sluice.dev.spec` prints the same. [Policies](policy.md) and [stores](stores.md) explain how the fields work
together, and [status](status.md) what the conditions mean.

An asterisk marks a field that is required. Objects that occur in several places are described once.
";

/// Returns the page.
#[must_use]
pub fn reference() -> String {
    let mut page = HEAD.to_owned();
    for (kind, crd) in crds() {
        let version = &crd["spec"]["versions"][0];
        let schema = &version["schema"]["openAPIV3Schema"];
        let _ = write!(page, "\n## {kind}\n\n{}\n", paragraphs(schema).join("\n"));
        let mut names = vec![crd["spec"]["names"]["plural"].as_str().unwrap_or_default()];
        names.extend(
            crd["spec"]["names"]["shortNames"].as_array().into_iter().flatten().filter_map(Value::as_str),
        );
        let names = names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let _ = writeln!(page, "\nName for kubectl: {names}. Scope: {}.", text(&crd["spec"]["scope"]));
        Sections::of(kind, schema).write(&mut page);
    }
    page
}

/// The objects of a CRD, each described once, in the order of the page.
struct Sections<'a> {
    /// Path and schema of each object.
    found: Vec<(String, &'a Value)>,
}

impl<'a> Sections<'a> {
    fn of(kind: &str, schema: &'a Value) -> Self {
        let mut found: Vec<(String, &'a Value)> = Vec::new();
        let mut next: VecDeque<(String, &'a Value)> = fields(schema)
            .filter(|(name, _)| matches!(name.as_str(), "spec" | "status"))
            .map(|(name, field)| (format!("{kind}.{name}"), field))
            .collect();
        while let Some((path, object)) = next.pop_front() {
            if found.iter().any(|(_, other)| is_same(other, object)) {
                continue;
            }
            found.push((path.clone(), object));
            let children = fields(object).map(|(name, field)| (format!("{path}.{name}"), field));
            let children = children.filter_map(|(path, field)| {
                let (object, suffix) = object_of(field)?;
                Some((path + suffix, object))
            });
            // What limits share with others is described with them.
            let (first, others): (Vec<_>, Vec<_>) =
                children.partition(|(path, _)| path.ends_with(".limits[]"));
            next.extend(first.into_iter().chain(others));
        }
        Self { found }
    }

    fn write(&self, page: &mut String) {
        for (path, object) in &self.found {
            let _ = write!(page, "\n### {path}\n\n{}\n", paragraphs(object).join("\n"));
            let members = members_of(object).unwrap_or_default();
            if !members.is_empty() {
                let names = members.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
                let _ = writeln!(page, "\nExactly one of {names} must be set.");
            }
            page.push_str("\n| field | type | meaning |\n|---|---|---|\n");
            let required: Vec<&str> = texts(&object["required"]);
            for (name, field) in fields(object) {
                let mark = if required.contains(&name.as_str()) { "\\*" } else { "" };
                let meaning = paragraphs(field).join("<br>");
                let _ = writeln!(page, "| `{name}`{mark} | {} | {meaning} |", self.type_of(field));
            }
        }
    }

    /// Describes the type of a field, with a link to the object that it holds.
    fn type_of(&self, field: &Value) -> String {
        if let Some((object, _)) = object_of(field) {
            let section = self.found.iter().find(|(_, other)| is_same(other, object));
            let path = section.map(|(path, _)| path.as_str()).unwrap_or_default();
            let name =
                path.rsplit('.').next().unwrap_or_default().trim_end_matches("[]").trim_end_matches("{}");
            let link = format!("[{name}](#{})", anchor(path));
            return match text(&field["type"]) {
                "array" => format!("list of {link}{}", at_most(field)),
                _ => link,
            };
        }
        match text(&field["type"]) {
            "array" => format!("list of {}{}", self.type_of(&field["items"]), at_most(field)),
            "object" => match &field["additionalProperties"] {
                Value::Object(_) => format!("map to {}", self.type_of(&field["additionalProperties"])),
                _ => "`{}`".to_owned(),
            },
            "string" => match &texts(&field["enum"])[..] {
                [] if text(&field["format"]) == "date-time" => "time".to_owned(),
                [] if text(&field["pattern"]).contains("(h|m|s|ms)") => "duration".to_owned(),
                [] => "string".to_owned(),
                choices => choices.iter().map(|choice| format!("`{choice}`")).collect::<Vec<_>>().join(", "),
            },
            "integer" => match (field["minimum"].as_f64(), field["maximum"].as_f64()) {
                (Some(minimum), Some(maximum)) => format!("integer, {minimum} to {maximum}"),
                (Some(minimum), None) => format!("integer from {minimum}"),
                (None, _) => "integer".to_owned(),
            },
            other => other.to_owned(),
        }
    }
}

/// Returns the fields of an object.
fn fields(schema: &Value) -> impl Iterator<Item = (&String, &Value)> {
    schema["properties"].as_object().into_iter().flat_map(Map::iter)
}

/// Returns the object with fields that a field holds or lists, and what its path ends with.
fn object_of(field: &Value) -> Option<(&Value, &'static str)> {
    let has_fields = |schema: &Value| fields(schema).next().is_some();
    match text(&field["type"]) {
        "object" if has_fields(field) => Some((field, "")),
        "object" if has_fields(&field["additionalProperties"]) => {
            Some((&field["additionalProperties"], "{}"))
        }
        "array" if has_fields(&field["items"]) => Some((&field["items"], "[]")),
        _ => None,
    }
}

/// Reports whether two objects have the same fields, so that one section describes both.
fn is_same(one: &Value, other: &Value) -> bool {
    ["properties", "required", "oneOf"].iter().all(|part| one[part] == other[part])
}

/// Returns the anchor of a heading, as mdBook and GitHub make it.
fn anchor(heading: &str) -> String {
    heading.chars().filter(|c| c.is_alphanumeric()).flat_map(char::to_lowercase).collect()
}

/// Returns the paragraphs and entries of a description, ready for a table.
fn paragraphs(schema: &Value) -> Vec<String> {
    let text = text(&schema["description"]).replace("\n- ", "\n\n- ");
    let paragraphs = text.split("\n\n").map(|paragraph| paragraph.split_whitespace().collect::<Vec<_>>());
    let paragraphs = paragraphs.map(|words| words.join(" ").replace('|', "\\|").replace('<', "&lt;"));
    paragraphs.filter(|paragraph| !paragraph.is_empty()).collect()
}

fn at_most(field: &Value) -> String {
    field["maxItems"].as_u64().map(|most| format!(", at most {most}")).unwrap_or_default()
}

fn text(value: &Value) -> &str {
    // A schema that allows null has a list of types.
    value.as_str().or_else(|| value.as_array()?.first()?.as_str()).unwrap_or_default()
}

fn texts(value: &Value) -> Vec<&str> {
    value.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_field_of_the_policy_is_in_the_reference_once() {
        let page = reference();
        for line in ["| `requests`\\* | integer, 0 to 1099511627776 |", "| `per`\\* | duration |"] {
            assert_eq!(page.matches(line).count(), 1, "{line}");
        }
        assert!(page.contains("| `key` | [key](#ratelimitpolicyspeclimitskey) |"));
        assert!(page.contains("\n### RateLimitPolicy.spec.limits[].key\n"));
        // Exemptions have the shape of matches, which comes later in the alphabet and is described with them.
        assert!(page.matches("| `clientCIDRs` |").count() == 1);
    }

    #[test]
    fn every_link_leads_to_a_heading_and_no_heading_occurs_twice() {
        let page = reference();
        let mut headings: Vec<String> =
            page.lines().filter_map(|line| line.strip_prefix("### ")).map(anchor).collect();
        for link in page.split("](#").skip(1).filter_map(|rest| rest.split(')').next()) {
            assert!(headings.iter().any(|heading| heading == link), "{link}");
        }
        let all = headings.len();
        headings.sort();
        headings.dedup();
        assert_eq!(headings.len(), all);
    }
}
