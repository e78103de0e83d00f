//! Conditions that select requests: as they are sent, and prepared to be tested on requests.

use http::{HeaderMap, HeaderName, Method};
use regex::bytes::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::nack::Nack;
use crate::path::has_prefix;

/// Memory limit of a compiled regular expression, in bytes.
const REGEX_BYTES: usize = 1 << 18;

/// Memory limit of the cache that a regular expression fills while it matches, in bytes.
const REGEX_CACHE_BYTES: usize = 1 << 18;

/// Conditions on a request, all of which must hold.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
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
#[serde(rename_all = "camelCase", deny_unknown_fields)]
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
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct HeaderMatch {
    /// Name of the header.
    pub name: String,
    /// Condition that at least one of its values must fulfil.
    pub value: ValueMatch,
}

/// A condition on the value of a header.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub enum ValueMatch {
    /// The value equals this text.
    Exact(String),
    /// The whole value matches this regular expression.
    Regex(String),
    /// The header is present (`true`) or absent (`false`).
    Present(bool),
}

/// A [`Match`] with its regular expressions compiled and its names parsed.
#[derive(Debug)]
pub struct Matcher {
    path: Option<PathMatcher>,
    methods: Vec<Method>,
    headers: Vec<(HeaderName, ValueMatcher)>,
}

#[derive(Debug)]
enum PathMatcher {
    Exact(String),
    Prefix(String),
    Regex(Regex),
}

#[derive(Debug)]
enum ValueMatcher {
    Exact(Vec<u8>),
    Regex(Regex),
    Present(bool),
}

/// Compiles a regular expression that must match a whole text. The engine does not backtrack, so matching
/// takes linear time for every text.
pub fn full_match_regex(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(&format!("^(?:{pattern})$"))
        .size_limit(REGEX_BYTES)
        .dfa_size_limit(REGEX_CACHE_BYTES)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => format!("it needs more than {limit} bytes when compiled"),
            regex::Error::Syntax(text) => {
                text.lines().last().unwrap_or("syntax error").replace("error: ", "")
            }
            other => other.to_string(),
        })
}

impl Matcher {
    /// Creates a matcher. Fails if a pattern, a method or a header name is not valid.
    pub fn new(from: &Match) -> Result<Self, Nack> {
        let path = match &from.path {
            None => None,
            Some(PathMatch::Exact(path)) => Some(PathMatcher::Exact(path.clone())),
            Some(PathMatch::Prefix(path)) => Some(PathMatcher::Prefix(path.clone())),
            Some(PathMatch::Regex(pattern)) => Some(PathMatcher::Regex(compile_regex(pattern)?)),
        };
        let methods = from.methods.iter().map(|method| {
            Method::from_bytes(method.as_bytes())
                .map_err(|_| Nack(format!("{method:?} is not an HTTP method")))
        });
        let headers = from.headers.iter().map(|HeaderMatch { name, value }| {
            let value = match value {
                ValueMatch::Exact(text) => ValueMatcher::Exact(text.clone().into_bytes()),
                ValueMatch::Regex(pattern) => ValueMatcher::Regex(compile_regex(pattern)?),
                ValueMatch::Present(present) => ValueMatcher::Present(*present),
            };
            Ok((header_name(name)?, value))
        });
        Ok(Self {
            path,
            methods: methods.collect::<Result<_, _>>()?,
            headers: headers.collect::<Result<_, Nack>>()?,
        })
    }

    /// Reports whether a request fulfils all conditions. `path` must be in normal form.
    #[must_use]
    pub fn matches(&self, method: &Method, path: &str, headers: &HeaderMap) -> bool {
        let path_ok = match &self.path {
            None => true,
            Some(PathMatcher::Exact(exact)) => path == exact,
            Some(PathMatcher::Prefix(prefix)) => has_prefix(path, prefix),
            Some(PathMatcher::Regex(regex)) => regex.is_match(path.as_bytes()),
        };
        path_ok
            && (self.methods.is_empty() || self.methods.contains(method))
            && self.headers.iter().all(|(name, value)| {
                let mut values = headers.get_all(name).iter();
                match value {
                    ValueMatcher::Exact(exact) => values.any(|value| value.as_bytes() == exact),
                    ValueMatcher::Regex(regex) => values.any(|value| regex.is_match(value.as_bytes())),
                    ValueMatcher::Present(present) => values.next().is_some() == *present,
                }
            })
    }
}

fn compile_regex(pattern: &str) -> Result<Regex, Nack> {
    full_match_regex(pattern)
        .map_err(|error| Nack(format!("invalid regular expression {pattern:?}: {error}")))
}

/// Parses the name of a header.
pub fn header_name(name: &str) -> Result<HeaderName, Nack> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| Nack(format!("{name:?} is not a header name")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn all_conditions_of_a_match_must_hold() {
        let matcher = Matcher::new(&Match {
            path: Some(PathMatch::Prefix("/v1".into())),
            methods: vec!["GET".into()],
            headers: vec![
                HeaderMatch { name: "X-Plan".into(), value: ValueMatch::Exact("free".into()) },
                HeaderMatch { name: "x-internal".into(), value: ValueMatch::Present(false) },
            ],
        })
        .unwrap();
        let free = headers(&[("x-plan", "free")]);
        assert!(matcher.matches(&Method::GET, "/v1/x", &free));
        assert!(!matcher.matches(&Method::POST, "/v1/x", &free));
        assert!(!matcher.matches(&Method::GET, "/v2/x", &free));
        assert!(!matcher.matches(&Method::GET, "/v1/x", &headers(&[("x-plan", "gold")])));
        assert!(!matcher.matches(
            &Method::GET,
            "/v1/x",
            &headers(&[("x-plan", "free"), ("x-internal", "1")])
        ));
    }

    #[test]
    fn a_regular_expression_matches_the_whole_text_within_its_memory_limit() {
        let matcher =
            Matcher::new(&Match { path: Some(PathMatch::Regex("/a|/b+".into())), ..Match::default() })
                .unwrap();
        assert!(matcher.matches(&Method::GET, "/bb", &HeaderMap::new()));
        assert!(!matcher.matches(&Method::GET, "/a/x", &HeaderMap::new()));
        assert!(full_match_regex("(a{1000}){1000}").unwrap_err().contains("more than"));
        assert!(full_match_regex("(").is_err());
    }
}
