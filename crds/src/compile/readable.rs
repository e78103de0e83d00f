//! The part of a spec that can be read although its schema has violations. A field with a violation is left
//! out, so that the violation hides none of the other fields.

use serde_json::{Map, Value, json};

use crate::checks::field::Report;

/// Returns the spec of an object without the fields that have violations: whole fields of the spec, and whole
/// fields of a limit.
pub(super) fn readable_spec(object: &Value, report: &Report) -> Value {
    let mut spec = object["spec"].as_object().cloned().unwrap_or_default();
    for (path, is_unknown) in report.paths() {
        let mut steps = path.split(['.', '[']).skip(1).map(|step| step.trim_end_matches(']'));
        if is_unknown {
            remove_alone(&mut spec, steps);
            continue;
        }
        let Some(field) = steps.next() else { continue };
        match steps.next().and_then(|index| index.parse::<usize>().ok()) {
            Some(index) if matches!(field, "limits" | "concurrency") => {
                if let Some(limit) = spec.get_mut(field).and_then(|limits| limits.get_mut(index)) {
                    remove(limit, steps.next(), field);
                }
            }
            _ => drop(spec.remove(field)),
        }
    }
    Value::Object(spec)
}

/// Removes the field at the end of a path.
fn remove_alone<'a>(spec: &mut Map<String, Value>, steps: impl Iterator<Item = &'a str>) {
    let steps: Vec<&str> = steps.collect();
    let Some((field, inside)) = steps.split_last() else { return };
    let Some((first, inside)) = inside.split_first() else {
        spec.remove(*field);
        return;
    };
    let parent = inside.iter().try_fold(spec.get_mut(*first), |value, step| match value {
        Some(Value::Object(fields)) => Some(fields.get_mut(*step)),
        Some(Value::Array(entries)) => Some(entries.get_mut(step.parse::<usize>().ok()?)),
        _ => None,
    });
    if let Some(Some(Value::Object(fields))) = parent {
        fields.remove(*field);
    }
}

/// Removes a field of a limit, or all its fields. What every limit has gets a value that is not reported again.
fn remove(limit: &mut Value, field: Option<&str>, list: &str) {
    if field.is_none() || !limit.is_object() {
        *limit = Value::Object(Map::new());
    }
    let Some(fields) = limit.as_object_mut() else { return };
    if let Some(field) = field {
        fields.remove(field);
    }
    fields.entry("name").or_insert_with(|| json!(""));
    if list == "limits" {
        fields.entry("rates").or_insert_with(|| json!([]));
    } else if fields.contains_key("max") == fields.contains_key("adaptive") {
        fields.remove("adaptive");
        fields.insert("max".to_owned(), json!(1));
    }
}
