//! The YAML objects of a text, with the line of everything in them, and checks of their metadata.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde::{Serialize, de};
use serde_json::{Map, Value};
use serde_saphyr::{Error, Spanned};

/// A YAML value. Every field and entry has its position in the text.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Map(Vec<(Spanned<String>, Spanned<Node>)>),
    List(Vec<Spanned<Node>>),
    Scalar(Value),
}

impl Node {
    /// Returns a field of a map.
    pub(super) fn get(&self, name: &str) -> Option<&Node> {
        match self {
            Self::Map(fields) => {
                fields.iter().find(|(key, _)| key.value == name).map(|(_, value)| &value.value)
            }
            _ => None,
        }
    }

    /// Returns the text of a string.
    pub(super) fn as_str(&self) -> Option<&str> {
        match self {
            Self::Scalar(Value::String(text)) => Some(text),
            _ => None,
        }
    }

    /// Reports whether an object is a policy.
    pub(super) fn is_policy(&self) -> bool {
        let is = |name: &str, value: &str| self.get(name).and_then(Self::as_str) == Some(value);
        is("apiVersion", "sluice.dev/v1alpha1") && is("kind", "RateLimitPolicy")
    }

    /// Returns the value in JSON, without positions.
    pub(super) fn to_json(&self) -> Value {
        match self {
            Self::Map(fields) => Value::Object(
                fields.iter().map(|(k, v)| (k.value.clone(), v.value.to_json())).collect::<Map<_, _>>(),
            ),
            Self::List(items) => items.iter().map(|item| item.value.to_json()).collect(),
            Self::Scalar(value) => value.clone(),
        }
    }
}

/// Reads the objects of a text, which may contain several documents and Lists.
pub(super) fn objects(text: &str) -> Result<Vec<Spanned<Node>>, Vec<Problem>> {
    // Only `true` and `false` are booleans, as in YAML 1.2; `n` and `off` are strings. A text that begins with `!` without
    // quotes is a tag, which would be dropped.
    let options = serde_saphyr::options! { strict_booleans: true, reject_unsupported_tags: true };
    let documents: Vec<Spanned<Node>> =
        serde_saphyr::from_multiple_with_options(text, options).map_err(|error| {
            let line = error.location().map_or(1, |location| location.line());
            let message = error.without_snippet().to_string();
            if let Error::DuplicateMappingKey { key, .. } = error.without_snippet() {
                let key = key.as_deref().unwrap_or("a key");
                let message = format!("{key} stands twice in the same map: remove one of them");
                return vec![Problem::new(line, "", message)];
            }
            vec![Problem::new(line, "", {
                let message = message.lines().next().unwrap_or_default();
                let hint = if message.contains("tag `!") {
                    ": put a text that begins with `!` in quotes"
                } else {
                    ""
                };
                format!("invalid YAML: {message}{hint}")
            })]
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
    Ok(nodes)
}

/// Returns the line of a field; if the field does not exist, the line of the innermost value around it.
pub(super) fn line_of(node: &Spanned<Node>, path: &str) -> u64 {
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

/// A problem in a file.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Problem {
    /// Name of the file; empty if it has none.
    pub file: String,
    /// Line number, from 1; 0 if a file cannot be read.
    pub line: u64,
    /// Path of the field; empty if the text is not valid YAML or the problem concerns the whole file.
    pub path: String,
    /// The problem, and what is allowed.
    pub message: String,
}

impl Problem {
    pub(super) fn new(line: u64, path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { file: String::new(), line: line.max(1), path: path.into(), message: message.into() }
    }

    /// Adds the name of the file.
    pub(super) fn in_file(self, file: &str) -> Self {
        Self { file: file.to_owned(), ..self }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { file, line, path, message } = self;
        match (file.as_str(), line) {
            ("", line) => write!(f, "{line}: ")?,
            (file, 0) => write!(f, "{file}: ")?,
            (file, line) => write!(f, "{file}:{line}: ")?,
        }
        if path.is_empty() { f.write_str(message) } else { write!(f, "{path}: {message}") }
    }
}

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
