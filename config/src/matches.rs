//! Conditions that select requests: as they are sent, and prepared to be tested on requests.
//!
//! - `values`: conditions on headers, query parameters and cookies.
//!
//! Where applications disagree how they read a request, a limit applies if any reading fulfils its conditions, and an
//! exemption only if all do: a client must not evade a limit by an unusual spelling.

use std::net::IpAddr;

use http::header::HOST;
use http::{HeaderName, HeaderValue, Method};
use ipnet::IpNet;
use regex::bytes::{Regex, RegexBuilder};
use serde::{Deserialize, Serialize};

use crate::nack::Nack;
use crate::path::{PathText, Reading, Readings};
use crate::request::RequestAttributes;

use self::values::ValueMatcher;

mod values;

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

/// The purpose of a [`Match`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Purpose {
    /// A limit applies to the requests that match. One reading is enough.
    Limit,
    /// The requests that match are exempt. All readings must match.
    Exemption,
}

/// A [`Match`] with its regular expressions compiled and its names parsed.
#[derive(Debug)]
pub struct Matcher {
    purpose: Purpose,
    path: Option<PathMatcher>,
    methods: Vec<Method>,
    hosts: Vec<HostMatcher>,
    headers: Vec<(HeaderName, ValueMatcher)>,
    query: Vec<(String, ValueMatcher)>,
    cookies: Vec<(String, ValueMatcher)>,
    client_cidrs: Vec<IpNet>,
}

#[derive(Debug)]
enum PathMatcher {
    Exact(PathText),
    Prefix(PathText),
    Regex(Regex),
}

/// Hosts, in lower case.
#[derive(Debug)]
enum HostMatcher {
    Exact(String),
    /// All names that end with this text, which begins with a dot.
    Below(String),
}

/// Compiles a regular expression that must match a whole text. The engine does not backtrack, so matching
/// takes linear time for every text.
pub fn full_match_regex(pattern: &str, ignores_case: bool) -> Result<Regex, String> {
    RegexBuilder::new(&format!("^(?:{pattern})$"))
        .case_insensitive(ignores_case)
        // A decoded path may contain a line break.
        .dot_matches_new_line(true)
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
    pub fn new(from: &Match, purpose: Purpose) -> Result<Self, Nack> {
        let path = from.path.as_ref().map(PathMatcher::new).transpose()?;
        let methods = from.methods.iter().map(|method| {
            Method::from_bytes(method.as_bytes())
                .map_err(|_| Nack(format!("{method:?} is not an HTTP method")))
        });
        let mut methods = methods.collect::<Result<Vec<_>, _>>()?;
        // Applications respond to HEAD with the handler of GET, unless they have one of its own.
        if methods.contains(&Method::GET) && purpose == Purpose::Limit {
            methods.push(Method::HEAD);
        }
        let headers =
            from.headers.iter().map(|entry| Ok((header_name(&entry.name)?, ValueMatcher::new(entry)?)));
        let named = |entries: &[NamedMatch]| {
            let matchers = entries.iter().map(|entry| Ok((entry.name.clone(), ValueMatcher::new(entry)?)));
            matchers.collect::<Result<_, Nack>>()
        };
        Ok(Self {
            purpose,
            path,
            methods,
            hosts: from.hosts.iter().map(|host| HostMatcher::new(host)).collect(),
            headers: headers.collect::<Result<_, Nack>>()?,
            query: named(&from.query)?,
            cookies: named(&from.cookies)?,
            client_cidrs: from.client_cidrs.clone(),
        })
    }

    /// Reports whether a request fulfils all conditions. `address` returns the client's address.
    #[must_use]
    pub fn matches(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: &mut impl FnMut() -> IpAddr,
    ) -> bool {
        let purpose = self.purpose;
        self.path.as_ref().is_none_or(|condition| match purpose {
            Purpose::Limit => path.any(|reading| condition.matches(reading)),
            Purpose::Exemption => path.all(|reading| condition.matches(reading)),
        }) && (self.methods.is_empty() || self.methods.contains(request.method))
            && (self.hosts.is_empty() || self.has_host(request))
            && self.headers.iter().all(|(name, value)| {
                value.matches(request.headers.get_all(name).iter().map(HeaderValue::as_bytes), purpose)
            })
            && self.query.iter().all(|(name, value)| value.matches(request.parameters(name), purpose))
            && self.cookies.iter().all(|(name, value)| value.matches(request.cookies(name), purpose))
            && (self.client_cidrs.is_empty() || self.has_client(address()))
    }

    fn has_client(&self, address: IpAddr) -> bool {
        self.client_cidrs.iter().any(|network| network.contains(&address))
    }
}

impl Matcher {
    fn has_host(&self, request: &RequestAttributes<'_>) -> bool {
        request.host().is_some_and(|host| self.hosts.iter().any(|condition| condition.matches(host)))
    }
}

impl PathMatcher {
    fn new(PathMatch { pattern, case_sensitive }: &PathMatch) -> Result<Self, Nack> {
        Ok(match pattern {
            PathPattern::Exact(path) => Self::Exact(PathText::new(path, *case_sensitive)),
            PathPattern::Prefix(path) => Self::Prefix(PathText::new(path, *case_sensitive)),
            PathPattern::Template(template) => {
                Self::Regex(compile_regex(&template_regex(template), !case_sensitive)?)
            }
            PathPattern::Regex(pattern) => Self::Regex(compile_regex(pattern, !case_sensitive)?),
        })
    }

    #[inline]
    fn matches(&self, path: &Reading<'_>) -> bool {
        match self {
            Self::Exact(exact) => exact.equals(path),
            Self::Prefix(prefix) => prefix.is_prefix_of(path),
            Self::Regex(regex) => regex.is_match(path.text().as_bytes()),
        }
    }
}

impl HostMatcher {
    fn new(host: &str) -> Self {
        let host = host.to_ascii_lowercase();
        match host.strip_prefix('*') {
            Some(below) => Self::Below(below.to_owned()),
            None => Self::Exact(host),
        }
    }

    /// Reports whether a host, without port and last dot, is among these.
    fn matches(&self, host: &str) -> bool {
        match self {
            Self::Exact(exact) => host.eq_ignore_ascii_case(exact),
            Self::Below(end) => {
                let start = host.len().saturating_sub(end.len());
                start > 0 && host.as_bytes()[start..].eq_ignore_ascii_case(end.as_bytes())
            }
        }
    }
}

/// Returns a regular expression for the paths of a template.
#[must_use]
pub fn template_regex(template: &str) -> String {
    let segments = template
        .split('/')
        .map(|segment| if is_parameter(segment) { "[^/]+".to_owned() } else { regex::escape(segment) });
    segments.collect::<Vec<_>>().join("/")
}

/// Reports whether a segment of a template stands for any text.
#[must_use]
pub fn is_parameter(segment: &str) -> bool {
    segment.len() > 2 && segment.starts_with('{') && segment.ends_with('}')
}

fn compile_regex(pattern: &str, ignores_case: bool) -> Result<Regex, Nack> {
    full_match_regex(pattern, ignores_case)
        .map_err(|error| Nack(format!("invalid regular expression {pattern:?}: {error}")))
}

/// Parses the name of a header. `host` is none: HTTP/2 has it elsewhere.
pub fn header_name(name: &str) -> Result<HeaderName, Nack> {
    match HeaderName::from_bytes(name.as_bytes()) {
        Ok(HOST) => Err(Nack("the header host cannot be used: match the request's hosts instead".into())),
        Ok(name) => Ok(name),
        Err(_) => Err(Nack(format!("{name:?} is not a header name"))),
    }
}

#[cfg(test)]
mod tests;
