//! Policies in YAML files, with lines in the errors: what `sluice check` and `sluice run` read.

use std::fmt;

use serde::de::{self, Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};
use serde_saphyr::Spanned;
use sluice_config::CompiledPolicy;

use crate::validate::{ValidPolicy, Violation, validate};

/// The largest manifest that is read, in bytes.
pub const MAX_BYTES: usize = 4 << 20;

/// A policy of a file.
#[derive(Debug, Clone)]
pub struct Loaded {
    /// Its namespace; `default` when the file does not say.
    pub namespace: String,
    /// Its name.
    pub name: String,
    /// What sidecars enforce.
    pub compiled: CompiledPolicy,
    /// What is legal and probably wrong.
    pub warnings: Vec<Problem>,
}

/// Something wrong in a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// The line, from 1.
    pub line: u64,
    /// The field, or nothing where the text is no YAML.
    pub path: String,
    /// What is wrong, and what is allowed.
    pub message: String,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.path.is_empty() {
            write!(f, "{}: {}", self.line, self.message)
        } else {
            write!(f, "{}: {}: {}", self.line, self.path, self.message)
        }
    }
}

/// Reads every policy of a YAML text (several documents, Lists). Objects of other kinds are passed over; a text
/// without any policy is a problem.
pub fn load(text: &str) -> Result<Vec<Loaded>, Vec<Problem>> {
    if text.len() > MAX_BYTES {
        return Err(vec![problem(
            1,
            "",
            format!("the file has {} bytes, {MAX_BYTES} at most are read", text.len()),
        )]);
    }
    // `n` and `off` are names: only true and false are booleans, as YAML 1.2 has it.
    let options = serde_saphyr::options! { strict_booleans: true };
    let documents: Vec<Spanned<Node>> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
            let line = error.location().map_or(1, |location| location.line());
            let message = error.without_snippet().to_string();
            vec![problem(line, "", format!("no valid YAML: {}", message.lines().next().unwrap_or_default()))]
        })?;
    let mut nodes = Vec::new();
    for document in documents {
        match &document.value {
            Node::Map(_) if document.value.get("kind").and_then(Node::as_str) == Some("List") => {
                if let Some(Node::List(items)) = document.value.get("items") {
                    nodes.extend(items.iter().cloned());
                }
            }
            Node::Scalar(Value::Null) => {}
            _ => nodes.push(document),
        }
    }
    let (mut loaded, mut problems) = (Vec::<Loaded>::new(), Vec::new());
    for node in &nodes {
        match policy(node) {
            Ok(Some(policy)) => {
                match loaded.iter().find(|l| l.namespace == policy.namespace && l.name == policy.name) {
                    Some(_) => problems.push(problem(
                        node.referenced.line(),
                        "metadata.name",
                        format!("{}/{} stands already in this file", policy.namespace, policy.name),
                    )),
                    None => loaded.push(policy),
                }
            }
            Ok(None) => {}
            Err(found) => problems.extend(found),
        }
    }
    if loaded.is_empty() && problems.is_empty() {
        let mut kinds: Vec<_> =
            nodes.iter().filter_map(|node| node.value.get("kind").and_then(Node::as_str)).collect();
        kinds.dedup();
        let only = if kinds.is_empty() { String::new() } else { format!(", only {}", kinds.join(", ")) };
        problems.push(problem(1, "", format!("there is no RateLimitPolicy in this file{only}")));
    }
    if problems.is_empty() { Ok(loaded) } else { Err(problems) }
}

fn policy(node: &Spanned<Node>) -> Result<Option<Loaded>, Vec<Problem>> {
    let top = node.referenced.line();
    if !matches!(node.value, Node::Map(_)) {
        return Err(vec![problem(top, "", "a Kubernetes object is needed here")]);
    }
    let (api, kind) =
        (node.value.get("apiVersion").and_then(Node::as_str), node.value.get("kind").and_then(Node::as_str));
    match (api, kind) {
        (Some("sluice.dev/v1alpha1"), Some("RateLimitPolicy")) => {}
        (Some(api), Some("RateLimitPolicy")) if api.starts_with("sluice.dev/") => {
            return Err(vec![problem(
                line_of(node, "apiVersion"),
                "apiVersion",
                format!("{api:?} is not known: sluice.dev/v1alpha1"),
            )]);
        }
        (Some(api), Some(kind)) if api.starts_with("sluice.dev/") => {
            let message = format!("{kind:?} is not known: RateLimitPolicy");
            return Err(vec![problem(line_of(node, "kind"), "kind", message)]);
        }
        (Some(_), Some(_)) => return Ok(None),
        (None, _) => return Err(vec![problem(top, "apiVersion", "is required: sluice.dev/v1alpha1")]),
        (_, None) => return Err(vec![problem(top, "kind", "is required: RateLimitPolicy")]),
    }
    let mut object = node.value.to_json();
    let name = object.pointer("/metadata/name").and_then(Value::as_str).unwrap_or_default().to_owned();
    if name.is_empty() {
        return Err(vec![problem(line_of(node, "metadata"), "metadata.name", "is required")]);
    }
    metadata(node, &object)?;
    let known = ["apiVersion", "kind", "metadata", "spec", "status"];
    if let Some(field) = object.as_object().and_then(|o| o.keys().find(|key| !known.contains(&key.as_str())))
    {
        return Err(vec![problem(
            line_of(node, field),
            field,
            format!("unknown field; known here: {}", known.join(", ")),
        )]);
    }
    if object.pointer("/metadata/namespace").is_none() {
        object["metadata"]["namespace"] = "default".into();
    }
    let located =
        |violation: Violation| problem(line_of(node, &violation.path), violation.path, violation.message);
    let valid: ValidPolicy =
        validate(&object).map_err(|violations| violations.into_iter().map(located).collect::<Vec<_>>())?;
    let compiled = crate::compile(&valid);
    let warnings = valid.warnings.into_iter().map(located).collect();
    Ok(Some(Loaded { namespace: compiled.namespace.clone(), name, compiled, warnings }))
}

/// What the API server says of metadata, as far as people write it.
fn metadata(node: &Spanned<Node>, object: &Value) -> Result<(), Vec<Problem>> {
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
        return Err(vec![problem(
            line_of(node, &path),
            path,
            format!("unknown field; known here: {}", KNOWN.join(", ")),
        )]);
    }
    for (path, longest) in [("metadata.name", 253), ("metadata.namespace", 63)] {
        let Some(value) = object.pointer(&format!("/{}", path.replace('.', "/"))) else { continue };
        let name = value.as_str().unwrap_or_default();
        let dots = path == "metadata.name";
        let good = |part: &str| {
            let inner = part.chars().all(|c| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-');
            !part.is_empty() && inner && !part.starts_with('-') && !part.ends_with('-')
        };
        if name.len() > longest || !(if dots { name.split('.').all(good) } else { good(name) }) {
            let message = format!(
                "{value} is no name: lower-case letters, digits and `-`, {longest} characters at most"
            );
            return Err(vec![problem(line_of(node, path), path, message)]);
        }
    }
    Ok(())
}

fn problem(line: u64, path: impl Into<String>, message: impl Into<String>) -> Problem {
    Problem { line: line.max(1), path: path.into(), message: message.into() }
}

/// The line of a field, or of the nearest thing around it that is there.
fn line_of(node: &Spanned<Node>, path: &str) -> u64 {
    let mut at = node;
    let mut line = node.referenced.line();
    for step in path.split(['.', '[']).map(|step| step.trim_end_matches(']')) {
        let next = match &at.value {
            Node::Map(fields) => fields.iter().find(|(name, _)| name.value == step).map(|(name, value)| {
                line = name.referenced.line();
                value
            }),
            Node::List(items) => step.parse::<usize>().ok().and_then(|n| items.get(n)).inspect(|item| {
                line = item.referenced.line();
            }),
            Node::Scalar(_) => None,
        };
        let Some(next) = next else { break };
        at = next;
    }
    line
}

/// YAML with the place of everything.
#[derive(Debug, Clone)]
enum Node {
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
    List(Vec<Spanned<Node>>),
    Scalar(Value),
}

impl Node {
    fn get(&self, name: &str) -> Option<&Node> {
        match self {
            Self::Map(fields) => {
                fields.iter().find(|(key, _)| key.value == name).map(|(_, value)| &value.value)
            }
            _ => None,
        }
    }

    fn as_str(&self) -> Option<&str> {
        match self {
            Self::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    fn to_json(&self) -> Value {
        match self {
            Self::Map(fields) => Value::Object(
                fields.iter().map(|(k, v)| (k.value.clone(), v.value.to_json())).collect::<Map<_, _>>(),
            ),
            Self::List(items) => items.iter().map(|item| item.value.to_json()).collect(),
            Self::Scalar(value) => value.clone(),
        }
    }
}

impl<'de> Deserialize<'de> for Node {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        deserializer.deserialize_any(NodeVisitor)
    }
}

struct NodeVisitor;

impl<'de> Visitor<'de> for NodeVisitor {
    type Value = Node;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("YAML")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Node, A::Error> {
        let mut fields: Vec<(Spanned<String>, Spanned<Node>)> = Vec::new();
        while let Some(key) = map.next_key::<Spanned<String>>()? {
            fields.push((key, map.next_value()?));
        }
        Ok(Node::Map(fields))
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Node, A::Error> {
        let mut items = Vec::new();
        while let Some(item) = seq.next_element()? {
            items.push(item);
        }
        Ok(Node::List(items))
    }

    fn visit_bool<E: de::Error>(self, value: bool) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i64<E: de::Error>(self, value: i64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_u64<E: de::Error>(self, value: u64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_i128<E: de::Error>(self, value: i128) -> Result<Node, E> {
        Ok(Node::Scalar((value as f64).into()))
    }

    fn visit_u128<E: de::Error>(self, value: u128) -> Result<Node, E> {
        Ok(Node::Scalar((value as f64).into()))
    }

    fn visit_f64<E: de::Error>(self, value: f64) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_str<E: de::Error>(self, value: &str) -> Result<Node, E> {
        Ok(Node::Scalar(value.into()))
    }

    fn visit_unit<E: de::Error>(self) -> Result<Node, E> {
        Ok(Node::Scalar(Value::Null))
    }

    fn visit_none<E: de::Error>(self) -> Result<Node, E> {
        self.visit_unit()
    }

    fn visit_some<D: Deserializer<'de>>(self, deserializer: D) -> Result<Node, D::Error> {
        Node::deserialize(deserializer)
    }
}
