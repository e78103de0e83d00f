//! Reference to content in a Secret or ConfigMap of the policy's namespace.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Content of a Secret or ConfigMap of the policy's namespace. Exactly one field is required. Sluice reads only what the
/// namespace lets it read: until then, the condition ResolvedRefs shows the commands that grant it.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub enum ContentRef {
    /// A field of a Secret.
    SecretRef(ObjectField),
    /// A field of a ConfigMap.
    ConfigMapRef(ObjectField),
}

/// A field of an object.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
#[serde(rename_all = "camelCase")]
pub struct ObjectField {
    /// Name of the object.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[a-z0-9]([-a-z0-9.]*[a-z0-9])?$"))]
    pub name: String,
    /// Name of the field in `data`.
    #[schemars(length(min = 1, max = 253), regex(pattern = "^[-._a-zA-Z0-9]+$"))]
    pub key: String,
}

/// The objects with the overrides of one limit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverrideSources {
    /// Index of the limit in the compiled policy.
    pub limit: usize,
    /// The objects.
    pub sources: Vec<ContentRef>,
}

/// The kinds of objects that content is read from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum ContentKind {
    /// A Secret.
    Secret,
    /// A ConfigMap.
    ConfigMap,
}

impl ContentKind {
    /// Returns the name of the kind.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Secret => "Secret",
            Self::ConfigMap => "ConfigMap",
        }
    }

    /// Returns the name of the resource, as RBAC names it.
    #[must_use]
    pub fn resource(self) -> &'static str {
        match self {
            Self::Secret => "secrets",
            Self::ConfigMap => "configmaps",
        }
    }
}

impl fmt::Display for ContentKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl ContentRef {
    /// Returns the kind of the object.
    #[must_use]
    pub fn kind(&self) -> ContentKind {
        match self {
            Self::SecretRef(_) => ContentKind::Secret,
            Self::ConfigMapRef(_) => ContentKind::ConfigMap,
        }
    }

    /// Returns the name of the object and of its field.
    #[must_use]
    pub fn field(&self) -> &ObjectField {
        match self {
            Self::SecretRef(field) | Self::ConfigMapRef(field) => field,
        }
    }
}

impl fmt::Display for ContentRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ObjectField { name, key } = self.field();
        write!(f, "`{key}` of the {} {name}", self.kind())
    }
}
