//! Reads policies and stores from YAML files and reports problems with their lines, for `sluice check` and `sluice run`.
//!
//! - [`yaml`]: YAML values that keep their lines.
//! - [`content`]: Secrets and ConfigMaps, whose content policies refer to.
//! - [`foreign`]: objects of other limiters.
//! - [`loaded`]: policies and stores from a file.
//! - [`metadata`]: checks of an object's metadata.
//! - [`plain`]: values that kubectl reads otherwise.
//! - [`problem`]: problems in a file.
//! - [`edit`]: changes to the text of a file.

mod content;
pub mod edit;
mod foreign;
pub mod loaded;
mod metadata;
mod plain;
pub mod problem;
mod yaml;

use serde_json::Value;
use serde_saphyr::Spanned;

use self::content::Content;
use self::foreign::Foreign;
use self::loaded::PendingPolicy;
pub use self::loaded::{LoadedPolicy, LoadedStore};
use self::metadata::check_metadata;
use self::plain::check_plain;
pub use self::problem::Problem;
use self::yaml::{Node, line_of, objects};
use crate::checks::installation::Installation;
use crate::compile::{Compiled, compile, compile_store};
use crate::policy::ContentKind;
use crate::policy::OverrideSources;
use crate::violation::Violation;

/// Size of the largest file that is read, in bytes.
pub const MAX_BYTES: usize = 4 << 20;

/// The objects of a file.
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
enum Kind {
    Policy,
    Store,
}

/// Reads every policy and store of a YAML text, which may contain several documents and Lists. Skips objects of other
/// kinds. The policies are compiled for an installation. It is a problem if the text contains neither.
pub fn load(text: &str, installation: &Installation) -> Result<Loaded, Vec<Problem>> {
    if text.len() > MAX_BYTES {
        return Err(vec![Problem::new(
            1,
            "",
            format!("the file has {} bytes: at most {MAX_BYTES} are allowed", text.len()),
        )]);
    }
    let nodes = objects(text)?;
    let (mut loaded, mut problems) = (Loaded::default(), Vec::new());
    let (mut policies, mut contents) = (Vec::<PendingPolicy>::new(), Vec::new());
    for node in &nodes {
        let mut add = |kind: &str, namespace: &str, name: &str, is_repeated: bool| {
            if is_repeated {
                let message = format!("the {kind} {namespace}/{name} is defined twice in this file");
                problems.push(Problem::new(node.referenced.line(), "metadata.name", message));
            }
            !is_repeated
        };
        let object = load_object(node, installation);
        if !matches!(object, Ok(LoadedObject::Foreign(_) | LoadedObject::Other)) {
            loaded.misread.extend(check_plain(text, node));
        }
        match object {
            Ok(LoadedObject::Policy(policy)) => {
                let LoadedPolicy { namespace, name, .. } = &policy.loaded;
                let same = |other: &PendingPolicy| {
                    other.loaded.namespace == *namespace && other.loaded.name == *name
                };
                if add("RateLimitPolicy", namespace, name, policies.iter().any(same)) {
                    policies.push(*policy);
                }
            }
            Ok(LoadedObject::Content(content)) => contents.push(content),
            Ok(LoadedObject::Store(store)) => {
                let (namespace, name) = (&store.namespace, &store.name);
                let same = |other: &LoadedStore| other.namespace == *namespace && other.name == *name;
                if add("RateLimitStore", namespace, name, loaded.stores.iter().any(same)) {
                    loaded.stores.push(*store);
                }
            }
            Ok(LoadedObject::Foreign(skipped)) => loaded.skipped.push(skipped),
            Ok(LoadedObject::Other) => {}
            Err(found) => problems.extend(found),
        }
    }
    for policy in policies {
        match content::resolve(policy, &contents) {
            Ok(policy) => loaded.policies.push(policy),
            Err(found) => problems.extend(found),
        }
    }
    if loaded.policies.is_empty() && loaded.stores.is_empty() && problems.is_empty() {
        problems.append(&mut loaded.skipped);
    }
    if loaded.policies.is_empty() && loaded.stores.is_empty() && problems.is_empty() {
        let mut kinds: Vec<_> =
            nodes.iter().filter_map(|node| node.value.get("kind").and_then(Node::as_str)).collect();
        kinds.dedup();
        let only = if kinds.is_empty() { String::new() } else { format!(", only {}", kinds.join(", ")) };
        problems.push(Problem::new(1, "", format!("the file contains no RateLimitPolicy{only}")));
    }
    if problems.is_empty() { Ok(loaded) } else { Err(problems) }
}

/// Loads one object.
fn load_object(node: &Spanned<Node>, installation: &Installation) -> Result<LoadedObject, Vec<Problem>> {
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
        (Some("sluice.dev/v1alpha1"), Some("RateLimitPolicy")) => Kind::Policy,
        (Some("sluice.dev/v1alpha1"), Some("RateLimitStore")) => Kind::Store,
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
            return Content::read(ContentKind::Secret, node).map(LoadedObject::Content);
        }
        (Some("v1"), Some("ConfigMap")) => {
            return Content::read(ContentKind::ConfigMap, node).map(LoadedObject::Content);
        }
        (Some(api), Some(kind)) => {
            let problem = |message| Problem::new(line_of(node, "apiVersion"), "apiVersion", message);
            return match foreign::of(api, kind, &node.value.to_json()) {
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
        Problem::new(line_of(node, &violation.path), violation.path, violation.message)
    };
    let located = |violations: Vec<Violation>| violations.into_iter().map(located).collect::<Vec<_>>();
    // A problem of the metadata hides none of the spec.
    let with_metadata = |mut problems: Vec<Problem>, found: Vec<Problem>| {
        problems.extend(found);
        problems
    };
    match kind {
        Kind::Policy => {
            let compiled = compile(&object, installation).map_err(located);
            let Compiled { policy, pods: _, enforced_by, overrides, jwks, warnings } = match compiled {
                Ok(compiled) if problems.is_empty() => compiled,
                Ok(_) => return Err(problems),
                Err(found) => return Err(with_metadata(problems, found)),
            };
            let (namespace, warnings) = (policy.namespace.clone(), located(warnings));
            let (tables, missing) = (Vec::new(), Vec::new());
            let loaded =
                LoadedPolicy { namespace, name, enforced_by, compiled: policy, warnings, tables, missing };
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
        Kind::Store => {
            let compiled = match compile_store(&object).map_err(located) {
                Ok(compiled) if problems.is_empty() => compiled,
                Ok(_) => return Err(problems),
                Err(found) => return Err(with_metadata(problems, found)),
            };
            let namespace = object["metadata"]["namespace"].as_str().unwrap_or_default().to_owned();
            Ok(LoadedObject::Store(Box::new(LoadedStore { namespace, name, compiled })))
        }
    }
}
