//! Reads policies and stores from YAML files and reports problems with their lines, for `sluice check` and `sluice run`. Objects of other
//! limiters, which a file may have beside policies, are skipped.
//!
//! - [`yaml`]: YAML values that keep their lines, the problems there, and checks of an object's metadata.
//! - [`content`]: policies and stores from a file; Secrets and ConfigMaps, whose content policies refer to.
//! - [`plain`]: values that kubectl reads otherwise.
//! - [`edit`]: changes to the text of a file.

mod content;
pub mod edit;
mod plain;
mod yaml;

use serde_json::Value;
use serde_saphyr::Spanned;

use self::content::{Content, PendingPolicy};
pub use self::content::{LoadedPolicy, LoadedStore, Source};
use self::plain::check_plain;
pub use self::yaml::Problem;
use self::yaml::{Node, check_metadata, line_of, objects};
use crate::checks::field::Violation;
use crate::checks::installation::Installation;
use crate::compile::{Compiled, compile, compile_store};
use crate::policy::{ContentKind, OverrideSources};

/// Size of the largest file that is read, in bytes.
pub const MAX_BYTES: usize = 4 << 20;

/// The objects of some files.
#[derive(Debug, Clone, Default)]
pub struct Loaded {
    /// The policies.
    pub policies: Vec<LoadedPolicy>,
    /// The stores.
    pub stores: Vec<LoadedStore>,
    /// Objects with limits of other projects, which are skipped, with the reason.
    pub skipped: Vec<Problem>,
    /// Values that kubectl reads otherwise, because they lack quotes.
    pub misread: Vec<Problem>,
    /// Objects that another file has, too.
    pub repeated: Vec<Problem>,
    /// Problems of the files. Without one, all objects are there.
    pub problems: Vec<Problem>,
}

/// An object of a file.
enum LoadedObject {
    Policy(Box<PendingPolicy>),
    Store(Box<LoadedStore>),
    Content(Content),
    /// An object with limits of another project, and why it is skipped.
    Foreign(Problem),
    /// An object of a kind that is none of ours.
    Other,
}

/// A kind of objects.
#[derive(Clone, Copy)]
enum ObjectKind {
    Policy,
    Store,
}

/// Reads every policy and store of a YAML text, as [`load_all`] does. Returns all problems if there are some.
pub fn load(text: &str, installation: &Installation) -> Result<Loaded, Vec<Problem>> {
    let loaded = load_all(&[Source { name: String::new(), text: text.to_owned() }], installation);
    if loaded.problems.is_empty() { Ok(loaded) } else { Err(loaded.problems) }
}

/// Reads every policy and store of files in YAML, each of which may contain several documents and Lists. Skips objects of other
/// kinds. The policies are compiled for an installation. It is a problem if the files contain neither.
#[must_use]
pub fn load_all(files: &[Source], installation: &Installation) -> Loaded {
    let (mut loaded, mut contents, mut kinds) = (Loaded::default(), Vec::new(), Vec::new());
    let mut policies = Vec::<PendingPolicy>::new();
    for Source { name: file, text } in files {
        let in_file = |problems: Vec<Problem>| problems.into_iter().map(|problem| problem.in_file(file));
        let nodes = match objects_of(text) {
            Ok(nodes) => nodes,
            Err(found) => {
                loaded.problems.extend(in_file(found));
                continue;
            }
        };
        for node in &nodes {
            kinds.extend(node.value.get("kind").and_then(Node::as_str).map(str::to_owned));
            let object = load_object(file, node, installation);
            if !matches!(object, Ok(LoadedObject::Foreign(_) | LoadedObject::Other)) {
                loaded.misread.extend(in_file(check_plain(text, node)));
            }
            let mut is_repeated = |object: &str, other: Option<&String>| {
                let Some(other) = other else { return false };
                let line = line_of(node, "metadata.name");
                let problem = |message| Problem::new(line, "metadata.name", message).in_file(file);
                if other == file {
                    loaded.problems.push(problem(format!("the {object} is defined twice in this file")));
                } else {
                    let message =
                        format!("the {object} is defined in {other}, too: give one of them another name");
                    loaded.repeated.push(problem(message));
                }
                other == file
            };
            match object {
                Ok(LoadedObject::Policy(policy)) => {
                    let LoadedPolicy { namespace, name, .. } = &policy.loaded;
                    let mut others = policies.iter().map(|other| &other.loaded).rev();
                    let other = others.find(|other| other.namespace == *namespace && other.name == *name);
                    let object = format!("RateLimitPolicy {namespace}/{name}");
                    if !is_repeated(&object, other.map(|other| &other.file)) {
                        policies.push(*policy);
                    }
                }
                Ok(LoadedObject::Store(store)) => {
                    let (namespace, name) = (&store.namespace, &store.name);
                    let mut others = loaded.stores.iter().rev();
                    let other = others.find(|other| other.namespace == *namespace && other.name == *name);
                    let object = format!("RateLimitStore {namespace}/{name}");
                    if !is_repeated(&object, other.map(|other| &other.file)) {
                        loaded.stores.push(*store);
                    }
                }
                Ok(LoadedObject::Content(content)) => contents.push(content),
                Ok(LoadedObject::Foreign(skipped)) => loaded.skipped.push(skipped.in_file(file)),
                Ok(LoadedObject::Other) => {}
                Err(found) => loaded.problems.extend(in_file(found)),
            }
        }
    }
    for policy in policies {
        match content::resolve(policy, &contents) {
            Ok(policy) => loaded.policies.push(policy),
            Err(found) => loaded.problems.extend(found),
        }
    }
    if loaded.policies.is_empty() && loaded.stores.is_empty() && loaded.problems.is_empty() {
        loaded.problems.append(&mut loaded.skipped);
    }
    if loaded.policies.is_empty() && loaded.stores.is_empty() && loaded.problems.is_empty() {
        kinds.dedup();
        let only = if kinds.is_empty() { String::new() } else { format!(", only {}", kinds.join(", ")) };
        let of = if files.len() == 1 { "the file contains" } else { "the files contain" };
        let problem = Problem::new(1, "", format!("{of} no RateLimitPolicy{only}"));
        loaded.problems.push(problem.in_file(files.first().map_or("", |file| &file.name)));
    }
    loaded
}

/// Reads the objects of a file, unless it is too large.
fn objects_of(text: &str) -> Result<Vec<Spanned<Node>>, Vec<Problem>> {
    if text.len() > MAX_BYTES {
        let message = format!("the file is larger than {} MiB: divide it into several ones", MAX_BYTES >> 20);
        return Err(vec![Problem::new(1, "", message)]);
    }
    objects(text)
}

/// Loads one object.
fn load_object(
    file: &str,
    node: &Spanned<Node>,
    installation: &Installation,
) -> Result<LoadedObject, Vec<Problem>> {
    let top = node.referenced.line();
    if !matches!(node.value, Node::Map(_)) {
        return Err(vec![Problem::new(
            top,
            "",
            "expected a Kubernetes object, a map with apiVersion and kind",
        )]);
    }
    let (api, kind) =
        (node.value.get("apiVersion").and_then(Node::as_str), node.value.get("kind").and_then(Node::as_str));
    let kind = match (api, kind) {
        (Some("sluice.dev/v1alpha1"), Some("RateLimitPolicy")) => ObjectKind::Policy,
        (Some("sluice.dev/v1alpha1"), Some("RateLimitStore")) => ObjectKind::Store,
        // Made by a command, and checked by the API server.
        (Some("sluice.dev/v1alpha1"), Some("CounterReset")) => return Ok(LoadedObject::Other),
        (Some(api), Some("RateLimitPolicy" | "RateLimitStore")) if api.starts_with("sluice.dev/") => {
            return Err(vec![Problem::new(
                line_of(node, "apiVersion"),
                "apiVersion",
                format!("{api:?} is not a known version: use sluice.dev/v1alpha1"),
            )]);
        }
        (Some(api), Some(kind)) if api.starts_with("sluice.dev/") => {
            let message = format!("{kind:?} is not a known kind: use RateLimitPolicy or RateLimitStore");
            return Err(vec![Problem::new(line_of(node, "kind"), "kind", message)]);
        }
        (Some("v1"), Some("Secret")) => {
            return Content::read(file, ContentKind::Secret, node).map(LoadedObject::Content);
        }
        (Some("v1"), Some("ConfigMap")) => {
            return Content::read(file, ContentKind::ConfigMap, node).map(LoadedObject::Content);
        }
        (Some(api), Some(kind)) => {
            let problem = |message| Problem::new(line_of(node, "apiVersion"), "apiVersion", message);
            return match of(api, kind, &node.value.to_json()) {
                Foreign::Other => Ok(LoadedObject::Other),
                Foreign::Limits(message) => Ok(LoadedObject::Foreign(problem(message))),
                Foreign::Mistaken(message) => Err(vec![problem(message)]),
            };
        }
        (None, _) => {
            return Err(vec![Problem::new(
                top,
                "apiVersion",
                "is required: for a policy, sluice.dev/v1alpha1",
            )]);
        }
        (_, None) => {
            return Err(vec![Problem::new(top, "kind", "is required: for a policy, RateLimitPolicy")]);
        }
    };
    let mut object = node.value.to_json();
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if object.get("metadata").is_some_and(|metadata| !metadata.is_object() && !metadata.is_null()) {
        let message = "must be an object: write metadata: {name: NAME}";
        return Err(vec![Problem::new(line_of(node, "metadata"), "metadata", message)]);
    }
    let mut problems = check_metadata(node, &object);
    let known = ["apiVersion", "kind", "metadata", "spec", "status"];
    let fields = object.as_object().into_iter().flat_map(|object| object.keys());
    for field in fields.filter(|key| !known.contains(&key.as_str())) {
        // The message about the missing name says where it belongs.
        if field != "name" || !name.is_empty() {
            let message = format!("unknown field: known fields are {}", known.join(", "));
            problems.push(Problem::new(line_of(node, field), field, message));
        }
    }
    if object.pointer("/metadata/namespace").is_none() {
        object["metadata"]["namespace"] = "default".into();
    }
    let located = |violation: Violation| {
        Problem::new(line_of(node, &violation.path), violation.path, violation.message).in_file(file)
    };
    let located = |violations: Vec<Violation>| violations.into_iter().map(located).collect::<Vec<_>>();
    // A problem of the metadata hides none of the spec.
    let with_metadata = |mut problems: Vec<Problem>, found: Vec<Problem>| {
        problems.extend(found);
        problems
    };
    match kind {
        ObjectKind::Policy => {
            let compiled = compile(&object, installation).map_err(located);
            let Compiled { policy, pods: _, enforced_by, overrides, jwks, warnings } = match compiled {
                Ok(compiled) if problems.is_empty() => compiled,
                Ok(_) => return Err(problems),
                Err(found) => return Err(with_metadata(problems, found)),
            };
            let (namespace, warnings) = (policy.namespace.clone(), located(warnings));
            let (tables, missing) = (Vec::new(), Vec::new());
            let loaded = LoadedPolicy {
                file: file.to_owned(),
                namespace,
                name,
                enforced_by,
                compiled: policy,
                warnings,
                tables,
                missing,
            };
            let line =
                |of: &OverrideSources| line_of(node, &format!("spec.limits[{}].overridesFrom", of.limit));
            let lines = overrides.iter().map(line).collect();
            let jwks = jwks.into_iter().map(|of| {
                let line = line_of(node, &format!("spec.jwt[{}].jwksFrom", of.jwt));
                (of, line)
            });
            let jwks = jwks.collect();
            Ok(LoadedObject::Policy(Box::new(PendingPolicy { loaded, overrides, lines, jwks })))
        }
        ObjectKind::Store => {
            let compiled = match compile_store(&object).map_err(located) {
                Ok(compiled) if problems.is_empty() => compiled,
                Ok(_) => return Err(problems),
                Err(found) => return Err(with_metadata(problems, found)),
            };
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
            let file = file.to_owned();
            Ok(LoadedObject::Store(Box::new(LoadedStore { file, namespace, name, compiled })))
        }
    }
}

/// Limits of other projects: their API group, the kinds with limits, and the name of the project as in docs/migration.md.
const OTHERS: [(&str, &[&str], &str); 9] = [
    ("kuadrant.io", &["RateLimitPolicy", "TokenRateLimitPolicy"], "Kuadrant"),
    ("limitador.kuadrant.io", &["Limitador"], "Kuadrant"),
    ("gateway.envoyproxy.io", &["BackendTrafficPolicy"], "Envoy Gateway"),
    ("networking.istio.io", &["EnvoyFilter"], "Envoy"),
    ("traefik.io", &["Middleware"], "Traefik"),
    ("traefik.containo.us", &["Middleware"], "Traefik"),
    ("configuration.konghq.com", &["KongPlugin", "KongClusterPlugin"], "Kong"),
    ("apisix.apache.org", &["ApisixPluginConfig", "ApisixRoute"], "APISIX"),
    ("policy.linkerd.io", &["HTTPLocalRateLimitPolicy"], "Linkerd"),
];

/// An object that is none of ours.
#[derive(Debug, PartialEq, Eq)]
enum Foreign {
    /// It has limits of another project, and is skipped for this reason.
    Limits(String),
    /// Its kind is one of ours in another group, so it was meant to be ours.
    Mistaken(String),
    /// Anything else.
    Other,
}

/// Words of objects that limit rates, among those of the same kinds that do something else.
const WORDS: [&str; 7] =
    ["ratelimit", "rate-limit", "rate_limit", "limit-count", "limit-req", "limit-conn", "inflightreq"];

/// Looks at an object by its API version, its kind, and its content.
fn of(api: &str, kind: &str, object: &Value) -> Foreign {
    let group = api.split_once('/').map_or("", |(group, _)| group);
    let skipped = |project: &str| {
        Foreign::Limits(format!(
            "{kind} is a kind of {project}, which is skipped: {}/blob/main/docs/migration.md says how to write it as a RateLimitPolicy \
             of sluice.dev/v1alpha1",
            env!("CARGO_PKG_REPOSITORY")
        ))
    };
    if let Some((_, _, project)) =
        OTHERS.iter().find(|(other, kinds, _)| *other == group && kinds.contains(&kind))
    {
        let text = object.to_string().to_ascii_lowercase();
        return if WORDS.iter().any(|word| text.contains(word)) { skipped(project) } else { Foreign::Other };
    }
    if matches!(kind, "RateLimitPolicy" | "RateLimitStore" | "CounterReset") {
        return if group.starts_with("sluice") {
            Foreign::Mistaken(format!("{api:?} has no {kind} of Sluice: use sluice.dev/v1alpha1"))
        } else {
            skipped(if group.is_empty() { "another project" } else { group })
        };
    }
    Foreign::Other
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn limits_of_other_projects_are_named_and_other_objects_are_not() {
        let project = |api, kind| match of(api, kind, &json!({"kind": kind, "spec": {"rateLimit": {}}})) {
            Foreign::Limits(text) => text.split_once(", which").unwrap().0.to_owned(),
            other => format!("{other:?}"),
        };
        assert_eq!(project("kuadrant.io/v1", "RateLimitPolicy"), "RateLimitPolicy is a kind of Kuadrant");
        assert_eq!(project("traefik.io/v1alpha1", "Middleware"), "Middleware is a kind of Traefik");
        assert_eq!(
            project("gateway.envoyproxy.io/v1alpha1", "BackendTrafficPolicy"),
            "BackendTrafficPolicy is a kind of Envoy Gateway"
        );
        for (api, kind) in [
            ("apps/v1", "Deployment"),
            ("traefik.io/v1alpha1", "IngressRoute"),
            ("traefik.io/v1alpha1", "Middleware"),
        ] {
            assert_eq!(of(api, kind, &json!({"spec": {"stripPrefix": {}}})), Foreign::Other);
        }
        let mistaken = Foreign::Mistaken(
            "\"sluice.io/v1alpha1\" has no RateLimitPolicy of Sluice: use sluice.dev/v1alpha1".into(),
        );
        assert_eq!(of("sluice.io/v1alpha1", "RateLimitPolicy", &json!({})), mistaken);
        assert_eq!(
            project("other.example/v1", "RateLimitPolicy"),
            "RateLimitPolicy is a kind of other.example"
        );
    }
}
