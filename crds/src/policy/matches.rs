//! Conditions that select requests.

use kube::KubeSchema;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

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
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.exact), has(self.prefix), has(self.regex)].filter(x, x).size() == 1").message("exactly one of exact, prefix, regex must be set"))]
pub struct PathMatch {
    /// The path must equal this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))]
    pub exact: Option<String>,
    /// The path must begin with these whole segments: /v1 matches /v1 and /v1/x, but not /v10.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024), regex(pattern = "^/"))]
    pub prefix: Option<String>,
    /// The whole path must match this regular expression (RE2 syntax).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub regex: Option<String>,
}

/// A condition on a header: its name and exactly one of exact, regex and present. If the header is repeated,
/// one matching value is enough.
#[derive(KubeSchema, Serialize, Deserialize, Clone, Debug, Default, PartialEq)]
#[serde(rename_all = "camelCase")]
#[x_kube(validation = Rule::new("[has(self.exact), has(self.regex), has(self.present)].filter(x, x).size() == 1").message("exactly one of exact, regex, present must be set"))]
pub struct HeaderMatch {
    /// Name of the header, in upper or lower case.
    #[schemars(length(min = 1, max = 128), regex(pattern = "^[A-Za-z0-9!#$%&'*+.^_`|~-]+$"))]
    pub name: String,
    /// The value must equal this text.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 1024))]
    pub exact: Option<String>,
    /// The whole value must match this regular expression (RE2 syntax).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(min = 1, max = 1024))]
    pub regex: Option<String>,
    /// The header must be present (true) or absent (false).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub present: Option<bool>,
}
