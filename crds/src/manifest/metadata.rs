//! Checks of an object's metadata.

use serde_json::Value;
use serde_saphyr::Spanned;

use super::problem::Problem;
use super::yaml::{Node, line_of};

/// Checks the fields and the names in `metadata` as the API server does. Returns all problems.
pub(super) fn check_metadata(node: &Spanned<Node>, object: &Value) -> Vec<Problem> {
    const KNOWN: [&str; 11] = [
        "annotations",
        "creationTimestamp",
        "finalizers",
        "generateName",
        "generation",
        "labels",
        "managedFields",
        "name",
        "namespace",
        "ownerReferences",
        "resourceVersion",
    ];
    let mut problems = Vec::new();
    if object.pointer("/metadata/name").and_then(Value::as_str).is_none_or(str::is_empty) {
        let (line, message) = match object.get("name") {
            None => (line_of(node, "metadata"), "is required"),
            Some(_) => {
                (line_of(node, "name"), "is required: `name` stands beside `metadata`, and belongs inside it")
            }
        };
        problems.push(Problem::new(line, "metadata.name", message));
    }
    let fields = object["metadata"].as_object().into_iter().flat_map(|fields| fields.keys());
    for field in fields.filter(|field| !KNOWN.contains(&field.as_str()) && *field != "uid") {
        let path = format!("metadata.{field}");
        let message = format!("unknown field: known fields are {}", KNOWN.join(", "));
        problems.push(Problem::new(line_of(node, &path), path, message));
    }
    for (path, longest) in [("metadata.name", 253), ("metadata.namespace", 63)] {
        let Some(value) = object.pointer(&format!("/{}", path.replace('.', "/"))) else { continue };
        let name = value.as_str().unwrap_or_default();
        if name.is_empty() && path == "metadata.name" {
            continue;
        }
        let dots = path == "metadata.name";
        let valid = |part: &str| {
            let inner = part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
            !part.is_empty() && inner && !part.starts_with('-') && !part.ends_with('-')
        };
        if name.len() > longest || !(if dots { name.split('.').all(valid) } else { valid(name) }) {
            let characters = if dots { "digits, `-` and `.`" } else { "digits and `-`" };
            let message = format!(
                "{value} is not a valid name: use lower-case letters, {characters}, \
                 at most {longest} characters"
            );
            problems.push(Problem::new(line_of(node, path), path, message));
        }
    }
    problems
}
