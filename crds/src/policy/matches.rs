//! Conditions that select requests.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use sluice_config::matches;
use sluice_config::path::normalize;

use crate::compile::field::Field;

/// Conditions on a request, all of which must hold. At least one is required.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct Match {
    /// Condition on the path, without the query. Every spelling counts under which an application may
    /// understand the path: /v1/pay is also meant by /V1/Pay, /v1/pay/, /v1//pay, /v1/%70ay, /x/../v1/pay and
    /// /v1/pay;a=b.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// Methods that match, in upper case, such as GET, which includes HEAD. Default: every method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 32), regex(pattern = "^[A-Z][A-Z-]*$")))]
    pub methods: Vec<String>,
    /// Hosts that match: names such as shop.example, or *.shop.example for all names below shop.example. They
    /// are compared without port, case and trailing dot. Default: every host.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(
        length(max = 16),
        inner(
            length(min = 1, max = 253),
            regex(pattern = r"^(\*\.)?[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$|^\[[0-9A-Fa-f:.]+\]$")
        )
    )]
    pub hosts: Vec<String>,
    /// Conditions on headers, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub headers: Vec<HeaderMatch>,
}

/// A condition on the path: exactly one of exact, prefix and regex.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct PathMatch {
    /// Pattern of the path.
    #[serde(flatten)]
    pub pattern: PathPattern,
    /// If true, upper and lower case differ. Only for applications that distinguish them: for others, a client
    /// evades the limit by another spelling. Default: false.
    #[serde(default)]
    pub case_sensitive: bool,
}

/// A pattern of paths.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum PathPattern {
    /// The path must equal this text. A slash at the end is ignored.
    Exact(#[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))] String),
    /// The path must begin with these whole segments: /v1 matches /v1 and /v1/x, but not /v10.
    Prefix(#[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))] String),
    /// The whole path must match this regular expression (RE2 syntax).
    Regex(#[schemars(length(min = 1, max = 1024))] String),
}

/// A condition on a header: its name and exactly one of exact, regex and present. If the header is repeated,
/// one matching value is enough.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub struct HeaderMatch {
    /// Name of the header, in upper or lower case. Not Host: use `hosts`.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    pub name: String,
    /// The condition.
    #[serde(flatten)]
    pub value: ValueMatch,
}

/// A condition on the value of a header.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum ValueMatch {
    /// The value must equal this text.
    Exact(#[schemars(length(max = 1024))] String),
    /// The whole value must match this regular expression (RE2 syntax).
    Regex(#[schemars(length(min = 1, max = 1024))] String),
    /// The header must be present (true) or absent (false).
    Present(bool),
}

impl Match {
    pub(crate) fn compile(&self, at: &Field<'_>) -> matches::Match {
        let Self { path, methods, hosts, headers } = self;
        if path.is_none() && methods.is_empty() && hosts.is_empty() && headers.is_empty() {
            at.violation(
                "is empty: set at least one of path, methods, hosts, headers; to match all requests, remove \
                 `matches`",
            );
        }
        let headers = headers.iter().enumerate().map(|(n, header)| {
            let at = at.at("headers").entry(n);
            if header.name.eq_ignore_ascii_case("host") {
                at.at("name").violation("cannot be host, which HTTP/2 sends elsewhere: use `hosts` instead");
            }
            matches::HeaderMatch { name: header.name.clone(), value: header.value.compile(&at) }
        });
        matches::Match {
            path: path.as_ref().map(|path| path.compile(&at.at("path"))),
            methods: methods.clone(),
            hosts: hosts.clone(),
            headers: headers.collect(),
        }
    }
}

impl PathMatch {
    fn compile(&self, at: &Field<'_>) -> matches::PathMatch {
        let literal = |name, text: &String| {
            let normal = normalize(text);
            let is_normal = normal == *text || text.strip_suffix('/') == Some(&normal);
            if !is_normal {
                at.at(name).violation(format_args!(
                    "{text:?} is not how paths are compared, which is decoded and without empty or dot \
                     segments: write {normal:?}"
                ));
            }
            normal.into_owned()
        };
        let pattern = match &self.pattern {
            PathPattern::Exact(text) => matches::PathPattern::Exact(literal("exact", text)),
            PathPattern::Prefix(text) => matches::PathPattern::Prefix(literal("prefix", text)),
            PathPattern::Regex(pattern) => {
                at.at("regex").regex(pattern);
                matches::PathPattern::Regex(pattern.clone())
            }
        };
        matches::PathMatch { pattern, case_sensitive: self.case_sensitive }
    }
}

impl ValueMatch {
    fn compile(&self, at: &Field<'_>) -> matches::ValueMatch {
        match self {
            Self::Exact(text) => matches::ValueMatch::Exact(text.clone()),
            Self::Regex(pattern) => {
                at.at("regex").regex(pattern);
                matches::ValueMatch::Regex(pattern.clone())
            }
            Self::Present(present) => matches::ValueMatch::Present(*present),
        }
    }
}
