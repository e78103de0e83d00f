//! Conditions as they are sent to sidecars.

use ipnet::IpNet;
use serde::{Deserialize, Serialize};

use crate::matches::DescriptorMatch;

/// Conditions on a request, all of which must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct Match {
    /// Condition on the path.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// Allowed methods. If empty, every method. GET includes HEAD.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub methods: Vec<String>,
    /// Allowed hosts: names, or `*.` and a name for all names below it. If empty, every host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hosts: Vec<String>,
    /// Conditions on headers, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub headers: Vec<NamedMatch>,
    /// Conditions on query parameters, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub query: Vec<NamedMatch>,
    /// Conditions on cookies, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cookies: Vec<NamedMatch>,
    /// Networks of clients. If empty, every client.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub client_cidrs: Vec<IpNet>,
    /// Condition on a descriptor of a gateway's question. It stands alone: such an entry is for descriptors, and not for requests.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rls: Option<DescriptorMatch>,
}

impl Match {
    /// Reports whether the entry is for requests of HTTP, and not for descriptors.
    #[must_use]
    pub fn is_for_requests(&self) -> bool {
        self.rls.is_none()
    }

    /// Reports whether every request fulfils the conditions.
    #[must_use]
    pub fn holds_for_all(&self) -> bool {
        let Self { path, methods, hosts, headers, query, cookies, client_cidrs, rls } = self;
        let every_path = path
            .as_ref()
            .is_none_or(|path| matches!(&path.pattern, PathPattern::Prefix(root) if root == "/"));
        let every_client =
            client_cidrs.is_empty() || client_cidrs.iter().any(|network| network.prefix_len() == 0);
        let lists =
            [methods.is_empty(), hosts.is_empty(), headers.is_empty(), query.is_empty(), cookies.is_empty()];
        rls.is_none() && every_path && every_client && lists == [true; 5]
    }

    /// Returns the number of regular expressions. A template becomes one.
    #[must_use]
    pub fn regexes(&self) -> usize {
        let in_path = self.path.as_ref().is_some_and(|path| match path.pattern {
            PathPattern::Template(_) | PathPattern::Regex(_) => true,
            PathPattern::Exact(_) | PathPattern::Prefix(_) => false,
        });
        let values = [&self.headers, &self.query, &self.cookies].into_iter().flatten();
        usize::from(in_path) + values.filter(|entry| matches!(entry.value, ValueMatch::Regex(_))).count()
    }
}

/// A condition on the path. It holds if any [reading](crate::path::Readings) of the path fulfils it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct PathMatch {
    /// Pattern of the path.
    pub pattern: PathPattern,
    /// Whether upper and lower case differ.
    pub case_sensitive: bool,
}

/// A pattern of paths.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum PathPattern {
    /// The path equals this text.
    Exact(String),
    /// The path begins with these whole segments: `/v1` matches `/v1` and `/v1/x`, not `/v10`.
    Prefix(String),
    /// The path has these segments. A segment in braces, such as `{id}`, stands for any text.
    Template(String),
    /// The whole path matches this regular expression.
    Regex(String),
}

impl PathPattern {
    /// Returns the pattern as the policy has it.
    #[must_use]
    pub fn text(&self) -> &str {
        match self {
            Self::Exact(text) | Self::Prefix(text) | Self::Template(text) | Self::Regex(text) => text,
        }
    }
}

/// A condition on one header, query parameter or cookie.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct NamedMatch {
    /// Name of the header, parameter or cookie.
    pub name: String,
    /// Condition on its value.
    pub value: ValueMatch,
    /// Whether the condition must not hold.
    #[serde(default, skip_serializing_if = "is_false")]
    pub not: bool,
}

/// A condition on a value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ValueMatch {
    /// The value equals this text.
    Exact(String),
    /// The value begins with this text.
    Prefix(String),
    /// The whole value matches this regular expression.
    Regex(String),
    /// There is a value (`true`), or none (`false`).
    Present(bool),
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes a reference")]
fn is_false(value: &bool) -> bool {
    !value
}
