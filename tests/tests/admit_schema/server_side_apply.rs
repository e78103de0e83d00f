//! Every field of policies, set, edited and removed by server-side apply, as Flux, Argo CD and Helm 4 do. What is stored
//! then is what a new object would have: nothing stays of an earlier version, or of its defaults.

use futures::StreamExt as _;
use kube::api::{Api, DynamicObject, Patch, PatchParams, ValidationDirective};
use kube::core::ApiResource;
use regex::Regex;
use serde_json::{Map, Value, json};
use sluice_crds::RateLimitPolicy;
use sluice_tests::kubernetes::TestNamespace;

/// Values of texts. A field gets the first that its schema accepts, and by an edit the second.
const TEXTS: [&str; 14] =
    ["a", "b", "/a", "/b", "A", "B", "1m", "2m", "200", "201", "a/b", "a/c", "a:b", "b:c"];

/// Fields that need others: the beginning of their paths, and the path of the other.
const NEEDS: [(&str, &str); 5] = [
    ("limits.overridesFrom.", "limits.key.parts"),
    ("limits.tiers.", "limits.tiers.when"),
    ("priorities.", "priorities.when"),
    ("jwt.", "jwt.issuer"),
    ("jwt.", "jwt.jwksFrom"),
];

/// Returns the fields of a union.
fn members(schema: &Value) -> Vec<&str> {
    let rules = schema["x-kubernetes-validations"].as_array().into_iter().flatten();
    let rules = rules.filter_map(|rule| rule["rule"].as_str());
    let Some(rule) = rules.clone().find(|rule| rule.starts_with('[')) else { return Vec::new() };
    rule.split("has(self.").skip(1).filter_map(|part| part.split(')').next()).collect()
}

/// Returns a small value of a field that has the field at `path` inside it. With `edited`, that one has another value.
fn sample(schema: &Value, path: &[&str], edited: bool) -> Value {
    match schema["type"].as_str() {
        Some("array") => json!([sample(&schema["items"], path, edited)]),
        Some("object") if schema["additionalProperties"].is_object() => {
            json!({"a": sample(&schema["additionalProperties"], path, edited)})
        }
        Some("object") => {
            let (next, rest) = path.split_first().map_or((None, path), |(next, rest)| (Some(*next), rest));
            let members = members(schema);
            let variant = members.iter().copied().find(|member| Some(*member) == next);
            let required = schema["required"].as_array().into_iter().flatten().filter_map(Value::as_str);
            let names = required.chain(next).chain(variant.or(members.first().copied()));
            let value = |name: &str| {
                let (path, edited) = if Some(name) == next { (rest, edited) } else { (&[][..], false) };
                sample(&schema["properties"][name], path, edited)
            };
            names.map(|name| (name.to_owned(), value(name))).collect::<Map<_, _>>().into()
        }
        Some("integer") => {
            json!(schema["minimum"].as_f64().unwrap_or(1.0).max(1.0) as i64 + i64::from(edited))
        }
        Some("boolean") => json!(!edited),
        Some("string") => {
            let values = schema["enum"].as_array().cloned().unwrap_or_else(|| TEXTS.map(Value::from).into());
            let pattern = schema["pattern"].as_str().map(|pattern| Regex::new(pattern).expect(pattern));
            let min = schema["minLength"].as_u64().unwrap_or_default() as usize;
            let accepts = |value: &&Value| {
                let text = value.as_str().unwrap_or_default();
                text.len() >= min && pattern.as_ref().is_none_or(|pattern| pattern.is_match(text))
            };
            let mut accepted = values.iter().filter(accepts);
            let first = accepted.next().unwrap_or_else(|| panic!("no text for {schema}"));
            accepted.next().filter(|_| edited).unwrap_or(first).clone()
        }
        other => panic!("{other:?}: {schema}"),
    }
}

/// Adds the fields of `more` that a value lacks.
fn add(value: &mut Value, more: Value) {
    match (value, more) {
        (Value::Object(fields), Value::Object(more)) => {
            for (name, more) in more {
                match fields.get_mut(&name) {
                    Some(value) => add(value, more),
                    None => drop(fields.insert(name, more)),
                }
            }
        }
        (Value::Array(items), Value::Array(more)) => {
            items.iter_mut().zip(more).for_each(|(item, more)| add(item, more))
        }
        _ => {}
    }
}

/// Changes the fields of the object that has the field at a path.
fn change(value: &mut Value, path: &[&str], to: impl FnOnce(&mut Map<String, Value>, &str)) {
    let fields = match value {
        Value::Array(items) => &mut items[0],
        other => other,
    };
    match path {
        [name] => to(fields.as_object_mut().expect("an object"), name),
        [name, rest @ ..] => change(&mut fields[*name], rest, to),
        [] => {}
    }
}

/// Collects the paths of all fields without fields of their own.
fn leaves(schema: &Value, path: &str, found: &mut Vec<String>) {
    match (schema["properties"].as_object(), &schema["items"]) {
        (Some(fields), _) => {
            for (name, schema) in fields {
                leaves(schema, format!("{path}.{name}").trim_start_matches('.'), found);
            }
        }
        (None, Value::Object(_)) => leaves(&schema["items"], path, found),
        (None, _) => found.push(path.to_owned()),
    }
}

/// A kind, and what its objects have at least.
struct Kind {
    api: Api<DynamicObject>,
    resource: ApiResource,
    schema: Value,
    least: Value,
}

impl Kind {
    fn new<K: kube::Resource<DynamicType = ()>>(namespace: &TestNamespace, least: &[&str]) -> Self {
        let crds = sluice_crds::crd_files().into_iter();
        let mut crds = crds.map(|(_, yaml)| serde_saphyr::from_str::<Value>(&yaml).unwrap());
        let crd = crds.find(|crd| crd["spec"]["names"]["kind"] == *K::kind(&())).unwrap();
        let schema = crd.pointer("/spec/versions/0/schema/openAPIV3Schema/properties/spec").unwrap().clone();
        let resource = ApiResource::erase::<K>(&());
        let api = Api::namespaced_with(namespace.client.clone(), &namespace.name, &resource);
        let least = sample(&schema, least, false);
        Self { api, resource, schema, least }
    }

    /// Applies a spec, and returns what is stored.
    async fn apply(&self, name: &str, spec: &Value, dry_run: bool) -> Result<Value, String> {
        self.apply_as("gitops", name, spec, dry_run).await
    }

    async fn apply_as(
        &self,
        manager: &str,
        name: &str,
        spec: &Value,
        dry_run: bool,
    ) -> Result<Value, String> {
        let ApiResource { api_version, kind, .. } = &self.resource;
        let object =
            json!({"apiVersion": api_version, "kind": kind, "metadata": {"name": name}, "spec": spec});
        let params = PatchParams {
            dry_run,
            field_validation: Some(ValidationDirective::Strict),
            ..PatchParams::apply(manager).force()
        };
        let applied = self.api.patch(name, &params, &Patch::Apply(&object)).await;
        applied.map(|object| object.data["spec"].clone()).map_err(|error| error.to_string())
    }

    /// Returns a spec with the field at a path, and with what it needs; or why there is none.
    async fn example(&self, path: &str) -> Result<Value, String> {
        let split: Vec<_> = path.split('.').collect();
        let mut spec = sample(&self.schema, &split, false);
        if spec["concurrency"].is_null() {
            add(&mut spec, self.least.clone());
        }
        let alone = self.apply("new", &spec, true).await;
        for (of, needed) in NEEDS {
            if alone.is_err() && path.starts_with(of) && !path.starts_with(needed) {
                let mut more = sample(&self.schema, &needed.split('.').collect::<Vec<_>>(), false);
                if path.ends_with(".deny") || path.ends_with(".unlimited") {
                    change(&mut more, &["limits", "tiers", "rates"], |fields, name| {
                        drop(fields.remove(name))
                    });
                }
                add(&mut spec, more);
            }
        }
        self.apply("new", &spec, true).await.map(|_| spec)
    }

    /// Sets, edits and removes the field at a path. Returns what is wrong.
    async fn check(&self, n: usize, path: &str) -> Option<String> {
        let name = format!("field-{n}");
        let split: Vec<_> = path.split('.').collect();
        let with = match self.example(path).await {
            Ok(spec) => spec,
            Err(error) => return Some(format!("{path}: no example: {error}")),
        };
        let mut edited = sample(&self.schema, &split, true);
        add(&mut edited, with.clone());
        let (mut without, mut null) = (with.clone(), with.clone());
        change(&mut without, &split, |fields, name| drop(fields.remove(name)));
        change(&mut null, &split, |fields, name| drop(fields.insert(name.to_owned(), Value::Null)));
        // It may stand for a default.
        let stored = self.apply("new", &null, true).await;
        if stored.is_ok() && stored != self.apply("new", &without, true).await {
            return Some(format!("{path}: null is stored as {stored:?}"));
        }
        for (step, spec) in [
            ("before", &self.least),
            ("set", &with),
            ("edited", &edited),
            ("removed", &without),
            ("all removed", &self.least),
        ] {
            // Some edits need others, and some fields are required.
            let Ok(new) = self.apply("new", spec, true).await else { continue };
            let stored = self.apply(&name, spec, false).await;
            if stored.as_ref() != Ok(&new) {
                return Some(format!("{path}, {step}: {spec} is stored as {stored:?} instead of {new}"));
            }
        }
        None
    }
}

#[tokio::test]
async fn admit_stores_what_was_applied_last_of_every_field() {
    let namespace = super::namespace().await;
    let policy = Kind::new::<RateLimitPolicy>(&namespace, &["limits"]);
    let mut paths = Vec::new();
    leaves(&policy.schema, "", &mut paths);
    assert!(paths.len() >= 350, "{} fields", paths.len());
    let checks = paths.iter().enumerate().map(|(n, path)| policy.check(n, path));
    let wrong = futures::stream::iter(checks).buffer_unordered(8).filter_map(async |wrong| wrong);
    let wrong: Vec<_> = wrong.collect().await;
    assert!(wrong.is_empty(), "{} fields:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test]
async fn admit_lets_another_manager_choose_another_variant_of_a_union() {
    let namespace = super::namespace().await;
    let policy = Kind::new::<RateLimitPolicy>(&namespace, &["limits"]);
    let spec = |algorithm: Value| super::limit(json!({"algorithm": algorithm}));
    policy.apply_as("helm", "p", &spec(json!({"gcra": {"burst": 5}})), false).await.unwrap();
    let stored = policy.apply_as("flux", "p", &spec(json!({"tokenBucket": {}})), false).await.unwrap();
    assert_eq!(stored["limits"][0]["algorithm"], json!({"tokenBucket": {}}));
}
