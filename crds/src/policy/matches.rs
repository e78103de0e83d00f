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
    /// Condition on the path, without the query. Percent-encoding is decoded, and empty and dot segments are
    /// resolved before the path is compared: /v1//pay, /v1/./pay and /v1/%70ay all count as /v1/pay.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub path: Option<PathMatch>,
    /// Methods that match, in upper case, such as GET. Default: every method.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 32), regex(pattern = "^[A-Z][A-Z-]*$")))]
    pub methods: Vec<String>,
    /// Conditions on headers, all of which must hold.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16))]
    pub headers: Vec<HeaderMatch>,
}

/// A condition on the path. Exactly one field is required.
#[derive(Serialize, Deserialize, JsonSchema, Clone, Debug, PartialEq)]
#[serde(rename_all = "camelCase")]
pub enum PathMatch {
    /// The path must equal this text.
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
    /// Name of the header, in upper or lower case.
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
        let Self { path, methods, headers } = self;
        if path.is_none() && methods.is_empty() && headers.is_empty() {
            at.violation(
                "is empty: set at least one of path, methods, headers; to match all requests, remove `matches`",
            );
        }
        let headers = headers.iter().enumerate().map(|(n, header)| matches::HeaderMatch {
            name: header.name.clone(),
            value: header.value.compile(&at.at("headers").entry(n)),
        });
        matches::Match {
            path: path.as_ref().map(|path| path.compile(&at.at("path"))),
            methods: methods.clone(),
            headers: headers.collect(),
        }
    }
}

impl PathMatch {
    fn compile(&self, at: &Field<'_>) -> matches::PathMatch {
        let literal = |name, text: &String| {
            let normal = normalize(text);
            if normal != *text {
                at.at(name).violation(format_args!(
                    "{text:?} can never match, because paths are compared decoded and without empty or dot \
                     segments: write {normal:?}"
                ));
            }
            text.clone()
        };
        match self {
            Self::Exact(text) => matches::PathMatch::Exact(literal("exact", text)),
            Self::Prefix(text) => matches::PathMatch::Prefix(literal("prefix", text)),
            Self::Regex(pattern) => {
                at.at("regex").regex(pattern);
                matches::PathMatch::Regex(pattern.clone())
            }
        }
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
