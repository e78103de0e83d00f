//! Which requests a limit is about.

use http::{HeaderMap, HeaderName, Method};
use regex::bytes::{Regex, RegexBuilder};

use crate::path::has_prefix;
use crate::policy::{HeaderMatch, Match, PathMatch, ValueMatch};
use crate::prepared::Nack;

/// The most memory that a compiled regular expression may take.
const REGEX_BYTES: usize = 1 << 18;

/// The most memory that its cache may take while texts are matched.
const REGEX_CACHE_BYTES: usize = 1 << 18;

/// A [`Match`], ready to be asked.
#[derive(Debug)]
pub struct Matcher {
    path: Option<Path>,
    methods: Vec<Method>,
    headers: Vec<(HeaderName, Value)>,
}

#[derive(Debug)]
enum Path {
    Exact(String),
    Prefix(String),
    Regex(Regex),
}

#[derive(Debug)]
enum Value {
    Exact(Vec<u8>),
    Regex(Regex),
    Present(bool),
}

/// Compiles a regular expression that must match the whole of a text. Linear in time whatever the text: the engine
/// does not backtrack.
pub fn whole_regex(pattern: &str) -> Result<Regex, String> {
    RegexBuilder::new(&format!("^(?:{pattern})$"))
        .size_limit(REGEX_BYTES)
        .dfa_size_limit(REGEX_CACHE_BYTES)
        .build()
        .map_err(|error| match error {
            regex::Error::CompiledTooBig(limit) => format!("it compiles to more than {limit} bytes"),
            regex::Error::Syntax(text) => {
                text.lines().last().unwrap_or("syntax error").replace("error: ", "")
            }
            other => other.to_string(),
        })
}

impl Matcher {
    /// Makes a match ready.
    pub fn new(from: &Match) -> Result<Self, Nack> {
        let path = match &from.path {
            None => None,
            Some(PathMatch::Exact(path)) => Some(Path::Exact(path.clone())),
            Some(PathMatch::Prefix(path)) => Some(Path::Prefix(path.clone())),
            Some(PathMatch::Regex(pattern)) => Some(Path::Regex(regex_of(pattern)?)),
        };
        let methods = from.methods.iter().map(|method| {
            Method::from_bytes(method.as_bytes()).map_err(|_| Nack(format!("{method:?} is no HTTP method")))
        });
        let headers = from.headers.iter().map(|HeaderMatch { name, value }| {
            let value = match value {
                ValueMatch::Exact(text) => Value::Exact(text.clone().into_bytes()),
                ValueMatch::Regex(pattern) => Value::Regex(regex_of(pattern)?),
                ValueMatch::Present(present) => Value::Present(*present),
            };
            Ok((header_name(name)?, value))
        });
        Ok(Self {
            path,
            methods: methods.collect::<Result<_, _>>()?,
            headers: headers.collect::<Result<_, Nack>>()?,
        })
    }

    /// Whether a request is meant. `path` is normalized.
    #[must_use]
    pub fn matches(&self, method: &Method, path: &str, headers: &HeaderMap) -> bool {
        let path_ok = match &self.path {
            None => true,
            Some(Path::Exact(exact)) => path == exact,
            Some(Path::Prefix(prefix)) => has_prefix(path, prefix),
            Some(Path::Regex(regex)) => regex.is_match(path.as_bytes()),
        };
        path_ok
            && (self.methods.is_empty() || self.methods.contains(method))
            && self.headers.iter().all(|(name, value)| {
                let mut values = headers.get_all(name).iter();
                match value {
                    Value::Exact(exact) => values.any(|value| value.as_bytes() == exact),
                    Value::Regex(regex) => values.any(|value| regex.is_match(value.as_bytes())),
                    Value::Present(present) => values.next().is_some() == *present,
                }
            })
    }
}

fn regex_of(pattern: &str) -> Result<Regex, Nack> {
    whole_regex(pattern).map_err(|error| Nack(format!("the regular expression {pattern:?}: {error}")))
}

/// A header's name as the http crate holds it.
pub fn header_name(name: &str) -> Result<HeaderName, Nack> {
    HeaderName::from_bytes(name.as_bytes()).map_err(|_| Nack(format!("{name:?} is no name of a header")))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        pairs.iter().map(|(name, value)| (HeaderName::from_static(name), value.parse().unwrap())).collect()
    }

    #[test]
    fn everything_said_must_hold() {
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
    fn a_regular_expression_matches_the_whole_and_may_not_grow() {
        let matcher =
            Matcher::new(&Match { path: Some(PathMatch::Regex("/a|/b+".into())), ..Match::default() })
                .unwrap();
        assert!(matcher.matches(&Method::GET, "/bb", &HeaderMap::new()));
        assert!(!matcher.matches(&Method::GET, "/a/x", &HeaderMap::new()));
        assert!(whole_regex("(a{1000}){1000}").unwrap_err().contains("more than"));
        assert!(whole_regex("(").is_err());
    }
}
