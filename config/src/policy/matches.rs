//! Conditions that select requests.

use serde::{Deserialize, Serialize};

/// Conditions on a request, all of which must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// Condition on the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// Allowed methods. If empty, every method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Conditions on headers, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<HeaderMatch>,
}

/// A condition on the path, which is compared in normal form ([`crate::path::normalize`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum PathMatch {
    /// The path equals this text.
    Exact(String),
    /// The path begins with these whole segments: `/v1` matches `/v1` and `/v1/x`, not `/v10`.
    Prefix(String),
    /// The whole path matches this regular expression.
    Regex(String),
}

/// A condition on one header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct HeaderMatch {
    /// Name of the header.
    pub name: String,
    /// Condition that at least one of its values must fulfil.
    pub value: ValueMatch,
}

/// A condition on the value of a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum ValueMatch {
    /// The value equals this text.
    Exact(String),
    /// The whole value matches this regular expression.
    Regex(String),
    /// The header is present (`true`) or absent (`false`).
    Present(bool),
}
