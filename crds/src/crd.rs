//! The CRDs: what the derived schemas lack is added here, and they are written as YAML.

use kube::CustomResourceExt as _;
use serde_json::{Value, json};

use crate::policy::RateLimitPolicy;
use crate::reset::CounterReset;
use crate::store::RateLimitStore;

/// Returns the CRDs as YAML, each with the name of its file.
#[must_use]
pub fn crd_files() -> Vec<(String, String)> {
    let file = |(_, mut crd): (&str, Value)| {
        let mut text = String::from("# Generated from crds/src by `make generate`. Do not edit.\n");
        finish(&mut crd, false);
        if let Some(spec) = crd.pointer_mut("/spec/versions/0/schema/openAPIV3Schema/properties/spec") {
            make_atomic(spec);
        }
        text.push_str(&serde_saphyr::to_string(&crd).unwrap_or_default());
        (format!("{}.yaml", crd["metadata"]["name"].as_str().unwrap_or_default()), text)
    };
    crds().into_iter().map(file).collect()
}

/// Returns the CRDs as they are derived from the types, by their kinds.
pub(crate) fn crds() -> Vec<(&'static str, Value)> {
    // A CRD is plain data, which always serializes.
    let plain = |crd| serde_json::to_value(crd).unwrap_or_default();
    vec![
        ("RateLimitPolicy", plain(RateLimitPolicy::crd())),
        ("RateLimitStore", plain(RateLimitStore::crd())),
        ("CounterReset", plain(CounterReset::crd())),
    ]
}

/// Returns the fields of a union, of which an object has exactly one; `None` if the schema is no union.
pub(crate) fn members_of(schema: &Value) -> Option<Vec<&str>> {
    let member = |one: &'_ Value| -> Option<usize> { one["required"].as_array().map(Vec::len) };
    let variants = schema["oneOf"].as_array()?;
    if variants.iter().any(|one| member(one) != Some(1)) {
        return None;
    }
    variants.iter().map(|one| one["required"][0].as_str()).collect()
}

/// Adds to every schema what the types do not say:
/// - A union has a rule with a message that names its fields, instead of `oneOf`, whose message does not.
/// - A list without a list type is atomic. Otherwise two appliers could merge their entries.
/// - Nothing in a list has a default: the API server would add it to what was applied, and GitOps tools, which
///   compare whole lists, would report a difference for ever. Defaults are applied when a policy is compiled.
/// - Nothing is nullable, because the lists are not. The API server drops the null of a field that is not, and server-side apply
///   refuses it.
/// - Each paragraph of a description is one line. `kubectl explain` wraps text to the terminal and would keep
///   the line breaks of the doc comments. The entries of a list stay on lines of their own.
fn finish(schema: &mut Value, in_list: bool) {
    let members =
        members_of(schema).map(|members| members.iter().map(|&name| name.to_owned()).collect::<Vec<_>>());
    match schema {
        Value::Object(fields) => {
            if let Some(members) = members {
                fields.remove("oneOf");
                let set =
                    members.iter().map(|name| format!("has(self.{name})")).collect::<Vec<_>>().join(", ");
                let rule = json!({
                    "rule": format!("[{set}].filter(x, x).size() == 1"),
                    "message": match &members[..] {
                        [only] => format!("{only} must be set"),
                        _ => format!("exactly one of {} must be set", members.join(", ")),
                    },
                });
                let rules = fields.entry("x-kubernetes-validations").or_insert_with(|| json!([]));
                if let Some(rules) = rules.as_array_mut() {
                    rules.insert(0, rule);
                }
            }
            if fields.get("type").is_some_and(|kind| kind == "array") {
                fields.entry("x-kubernetes-list-type").or_insert_with(|| json!("atomic"));
            }
            fields.remove("nullable");
            // A field named `default` would be an object with a type.
            if in_list && fields.contains_key("type") {
                fields.remove("default");
            }
            for (name, value) in fields {
                match value {
                    Value::String(text) if name == "description" => {
                        *text = text.replace("\n- ", "\n\n- ");
                        *text = text.split("\n\n").map(join_paragraph).collect::<Vec<_>>().join("\n");
                    }
                    other => finish(other, in_list || name == "items"),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| finish(item, in_list)),
        _ => {}
    }
}

/// Makes the objects in an object atomic, so that server-side apply replaces each as a whole. Otherwise one that loses its last field
/// becomes null instead of empty, and where one of several fields must be set, another manager could not set another one.
fn make_atomic(object: &mut Value) {
    for (_, field) in object["properties"].as_object_mut().into_iter().flatten() {
        if field["type"] == "object" {
            field["x-kubernetes-map-type"] = json!("atomic");
        } else if field["x-kubernetes-list-type"] == "map" {
            make_atomic(&mut field["items"]);
        }
    }
}

fn join_paragraph(text: &str) -> String {
    text.lines().map(str::trim).collect::<Vec<_>>().join(" ")
}
