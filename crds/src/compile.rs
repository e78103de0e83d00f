//! Compiles policies and stores. Validating is compiling: one function returns the compiled form, or all violations.
//! Admission, the controller and `sluice check` all call it, so they always agree.
//!
//! Each type in [`crate::policy`] and [`crate::store`] compiles itself: it checks its fields, reports what is wrong or probably not
//! intended, and translates the rest. Equal specs give equal compiled policies, with equal hashes.
//!
//! If the schema of an object has violations, a field with one is left out, so that it hides none of the other fields.

use serde::de::DeserializeOwned;
use serde_json::{Map, Value, json};
use sluice_config::CompiledPolicy;

use crate::checks::field::{Field, Report, Violation};
use crate::checks::installation::Installation;
use crate::policy::key::JwksSource;
use crate::policy::{EnforcedBy, OverrideSources, PodSelection, RateLimitPolicySpec};
use crate::schema;
use crate::store::{CompiledStore, RateLimitStoreSpec};

/// A valid policy.
#[derive(Debug, Clone)]
pub struct Compiled {
    /// The policy that sidecars enforce.
    pub policy: CompiledPolicy,
    /// Pods that the policy applies to.
    pub pods: PodSelection,
    /// Its enforcers.
    pub enforced_by: EnforcedBy,
    /// The objects with overrides, whose tables the policy does not have yet.
    pub overrides: Vec<OverrideSources>,
    /// The objects with public keys, which the policy does not have yet.
    pub jwks: Vec<JwksSource>,
    /// Settings that are valid but probably not intended.
    pub warnings: Vec<Violation>,
}

/// Compiles a policy in JSON for an installation, or returns all its violations: those of the schema, and everything that
/// a schema cannot express.
pub fn compile(object: &Value, installation: &Installation) -> Result<Compiled, Vec<Violation>> {
    let (compiled, warnings) =
        compile_spec(object, "RateLimitPolicy", |spec: RateLimitPolicySpec, at, name| {
            let (policy, pods) = spec.compile(at, installation, name("namespace"), name("name"));
            let enforced_by = EnforcedBy::new(&spec.enforced_by);
            Some((policy?, pods, enforced_by, spec.override_sources(), spec.jwks_sources()))
        })?;
    let (policy, pods, enforced_by, overrides, jwks) = compiled;
    Ok(Compiled { policy, pods, enforced_by, overrides, jwks, warnings })
}

/// Compiles a store in JSON, or returns all its violations.
pub fn compile_store(object: &Value) -> Result<CompiledStore, Vec<Violation>> {
    let (store, _) =
        compile_spec(object, "RateLimitStore", |spec: RateLimitStoreSpec, at, _| spec.compile(at))?;
    Ok(store)
}

/// Compiles the spec of an object. `compile` receives the spec, its place, and the fields of the object's metadata.
/// Returns the compiled form and the warnings.
fn compile_spec<S: DeserializeOwned, C>(
    object: &Value,
    kind: &str,
    compile: impl FnOnce(S, &Field<'_>, &dyn Fn(&str) -> String) -> Option<C>,
) -> Result<(C, Vec<Violation>), Vec<Violation>> {
    let mut object = object.clone();
    remove_nulls(&mut object);
    let report = Report::new(schema::violations(kind, &object));
    let spec = match serde_json::from_value::<S>(readable_spec(&object, &report)) {
        Ok(spec) => spec,
        Err(error) => {
            // Without a required field, there is nothing more to find.
            if report.is_empty() {
                Field::root(&report).violation(error.to_string());
            }
            return Err(report.into_violations());
        }
    };
    let name = |field: &str| object["metadata"][field].as_str().unwrap_or_default().to_owned();
    match (compile(spec, &Field::root(&report), &name), report.is_empty()) {
        (Some(compiled), true) => Ok((compiled, report.into_warnings())),
        _ => Err(report.into_violations()),
    }
}

/// Removes fields that are null, which the API server treats as absent.
fn remove_nulls(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.retain(|_, value| !value.is_null());
            fields.values_mut().for_each(remove_nulls);
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

/// Returns the spec of an object without the fields that have violations: whole fields of the spec, and whole
/// fields of a limit.
fn readable_spec(object: &Value, report: &Report) -> Value {
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
