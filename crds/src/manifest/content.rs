//! The policies and stores of a file, and its Secrets and ConfigMaps, whose content policies refer to.

use std::collections::BTreeMap;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;
use serde_saphyr::Spanned;
use sluice_config::CompiledPolicy;
use sluice_config::jwt::read_jwks;

use super::yaml::{Node, Problem, line_of};
use crate::policy::key::JwksSource;
use crate::policy::{ContentKind, ContentRef, EnforcedBy, OverrideSources};
use crate::store::CompiledStore;

/// A file with objects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Source {
    /// Name of the file, which stands before the line of each problem; empty if it has none.
    pub name: String,
    /// Text of the file.
    pub text: String,
}

/// A policy from a file.
#[derive(Debug, Clone)]
pub struct LoadedPolicy {
    /// Name of the file.
    pub file: String,
    /// Namespace of the policy; `default` if the file names none.
    pub namespace: String,
    /// Name of the policy.
    pub name: String,
    /// Its enforcers.
    pub enforced_by: EnforcedBy,
    /// The compiled policy.
    pub compiled: CompiledPolicy,
    /// Settings that are valid but probably not intended.
    pub warnings: Vec<Problem>,
    /// The tables of overrides that the compiled policy refers to.
    pub tables: Vec<Vec<u8>>,
    /// References to content that no file has. The compiled policy is without it.
    pub missing: Vec<Problem>,
}

/// A policy whose references have not been resolved.
pub(super) struct PendingPolicy {
    pub(super) loaded: LoadedPolicy,
    pub(super) overrides: Vec<OverrideSources>,
    /// The line of each entry in `overrides`.
    pub(super) lines: Vec<u64>,
    /// The objects with public keys, each with its line.
    pub(super) jwks: Vec<(JwksSource, u64)>,
}

/// A store from a file.
#[derive(Debug, Clone)]
pub struct LoadedStore {
    /// Name of the file.
    pub file: String,
    /// Namespace of the store; `default` if the file names none.
    pub namespace: String,
    /// Name of the store.
    pub name: String,
    /// The compiled store.
    pub compiled: CompiledStore,
}

/// A Secret or ConfigMap.
#[derive(Debug)]
pub(super) struct Content {
    namespace: String,
    kind: ContentKind,
    name: String,
    fields: BTreeMap<String, ContentValue>,
}

/// A field of an object.
#[derive(Debug)]
struct ContentValue {
    file: String,
    value: Vec<u8>,
    line: u64,
    path: String,
}

impl Content {
    /// Reads an object.
    pub(super) fn read(file: &str, kind: ContentKind, node: &Spanned<Node>) -> Result<Self, Vec<Problem>> {
        let object = node.value.to_json();
        let text = |path: &str| object.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let namespace = Some(text("/metadata/namespace")).filter(|namespace| !namespace.is_empty());
        let mut content = Self {
            namespace: namespace.unwrap_or_else(|| "default".to_owned()),
            kind,
            name: text("/metadata/name"),
            fields: BTreeMap::new(),
        };
        for (list, is_encoded) in [("data", kind == ContentKind::Secret), ("stringData", false)] {
            for (key, value) in object[list].as_object().into_iter().flatten() {
                let path = format!("{list}.{key}");
                let line = line_of(node, &path);
                let invalid = |message: &str| vec![Problem::new(line, path.clone(), message.to_owned())];
                let text = value.as_str().ok_or_else(|| invalid("must be a string"))?;
                let value = match is_encoded {
                    true => STANDARD.decode(text.split_ascii_whitespace().collect::<String>()),
                    false => Ok(text.as_bytes().to_vec()),
                };
                let value = value.map_err(|_| invalid("is not valid base64"))?;
                content.fields.insert(key.clone(), ContentValue { file: file.to_owned(), value, line, path });
            }
        }
        Ok(content)
    }
}

/// Builds the tables of a policy from the contents of its file, or else of the other ones.
pub(super) fn resolve(policy: PendingPolicy, contents: &[Content]) -> Result<LoadedPolicy, Vec<Problem>> {
    let PendingPolicy { mut loaded, overrides, lines, jwks } = policy;
    let find = |source: &ContentRef| {
        let is_it = |content: &&Content| {
            content.namespace == loaded.namespace
                && content.kind == source.kind()
                && content.name == source.field().name
        };
        let fields =
            contents.iter().filter(is_it).filter_map(|content| content.fields.get(&source.field().key));
        fields.min_by_key(|field| field.file != loaded.file)
    };
    let mut problems = Vec::new();
    let mut tables = Vec::new();
    for (of_limit, line) in overrides.into_iter().zip(lines) {
        let path = format!("spec.limits[{}].overridesFrom", of_limit.limit);
        let missing = of_limit.sources.iter().filter(|source| find(source).is_none());
        let missing = missing.map(|source| {
            Problem::new(line, path.clone(), format!("{source} is not in this file")).in_file(&loaded.file)
        });
        let before = loaded.missing.len();
        loaded.missing.extend(missing.collect::<Vec<_>>());
        if loaded.missing.len() > before {
            continue;
        }
        let fields: Vec<_> = of_limit.sources.iter().filter_map(find).collect();
        let content: Vec<_> = fields.iter().map(|field| field.value.as_slice()).collect();
        match of_limit.build(&loaded.compiled, &content) {
            Ok(table) => tables.push((of_limit, table)),
            Err(invalid) => problems.extend(invalid.iter().filter_map(|invalid| {
                let field = find(&invalid.source)?;
                Some(Problem::new(field.line, field.path.clone(), invalid.to_string()).in_file(&field.file))
            })),
        }
    }
    let mut key_sets = Vec::new();
    for (of_jwt, line) in jwks {
        match find(&of_jwt.source) {
            None => {
                let path = format!("spec.jwt[{}].jwksFrom", of_jwt.jwt);
                let message = format!("{} is not in this file", of_jwt.source);
                loaded.missing.push(Problem::new(line, path, message).in_file(&loaded.file));
            }
            Some(field) => match read_jwks(&field.value) {
                Ok(jwks) => key_sets.push((of_jwt, jwks)),
                Err(error) => {
                    problems.push(Problem::new(field.line, field.path.clone(), error).in_file(&field.file));
                }
            },
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    for (of_jwt, jwks) in key_sets {
        of_jwt.set(&mut loaded.compiled, jwks);
    }
    for (of_limit, table) in tables {
        of_limit.set(&mut loaded.compiled, sluice_config::policy::BlobHash::of(&table));
        loaded.tables.push(table);
    }
    Ok(loaded)
}
