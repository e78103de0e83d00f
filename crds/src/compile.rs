//! Compiles policies and stores. Validating is compiling: one function returns the compiled form, or all violations.
//! Admission, the controller and `sluice check` all call it, so they always agree.
//!
//! Each type in [`crate::policy`] and [`crate::store`] compiles itself: it checks its fields, reports what is wrong or probably not
//! intended, and translates the rest. Equal specs give equal compiled policies, with equal hashes.
//!
//! - [`readable`]: what can be read of an object whose schema has violations, so that they hide no others.

mod readable;

use serde::de::DeserializeOwned;
use serde_json::Value;
use sluice_config::CompiledPolicy;

use self::readable::readable_spec;
use crate::checks::field::{Field, Report};
use crate::checks::installation::Installation;
use crate::policy::EnforcedBy;
use crate::policy::OverrideSources;
use crate::policy::jwt::JwksSource;
use crate::policy::{PodSelection, RateLimitPolicySpec};
use crate::schema;
use crate::store::{CompiledStore, RateLimitStoreSpec};
use crate::violation::Violation;

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
