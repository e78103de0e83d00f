//! Checks of an object's metadata.

use serde_json::Value;
use serde_saphyr::Spanned;

use super::problem::Problem;
use super::yaml::{Node, line_of};

/// Checks the fields and the names in `metadata` as the API server does.
pub(super) fn check_metadata(node: &Spanned<Node>, object: &Value) -> Result<(), Vec<Problem>> {
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
    let fields = object["metadata"].as_object();
    if let Some(field) =
        fields.and_then(|fields| fields.keys().find(|f| !KNOWN.contains(&f.as_str()) && *f != "uid"))
    {
        let path = format!("metadata.{field}");
        return Err(vec![Problem::new(
            line_of(node, &path),
            path,
            format!("unknown field: known fields are {}", KNOWN.join(", ")),
        )]);
    }
    for (path, longest) in [("metadata.name", 253), ("metadata.namespace", 63)] {
        let Some(value) = object.pointer(&format!("/{}", path.replace('.', "/"))) else { continue };
        let name = value.as_str().unwrap_or_default();
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
            return Err(vec![Problem::new(line_of(node, path), path, message)]);
        }
    }
    Ok(())
}
