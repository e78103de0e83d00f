//! Conditions that select requests. `spec`: as policies have them.
//!
//! Where applications disagree how they read a request, a limit applies if any reading fulfils its conditions, and an
//! exemption only if all do: a client must not evade a limit by an unusual spelling.

mod spec;
#[cfg(test)]
mod tests;

use std::net::IpAddr;

use http::header::{AUTHORIZATION, HOST};
use http::{HeaderName, Method};
use ipnet::IpNet;
use regex::bytes::{Regex, RegexBuilder};

pub use self::spec::{
    DescriptorMatch, EntryMatch, GrpcMatch, Match, NamedMatch, PathMatch, PathPattern, ValueMatch,
};
use crate::client_address::{canonical_network, network};
use crate::effort::{Effort, note};
use crate::nack::Nack;
use crate::path::{PathText, Reading, Readings};
pub use crate::request::values::Purpose;
use crate::request::{FieldName, HeaderField, RequestAttributes, Values, host_of};

/// A [`Match`] with its regular expressions compiled and its names parsed.
#[derive(Debug)]
pub struct Matcher {
    purpose: Purpose,
    path: Option<PathMatcher>,
    methods: Vec<Method>,
    hosts: Vec<HostMatcher>,
    headers: Vec<(HeaderField, ValueMatcher)>,
    query: Vec<(FieldName, ValueMatcher)>,
    cookies: Vec<(FieldName, ValueMatcher)>,
    client_cidrs: Vec<IpNet>,
}

#[derive(Debug)]
enum PathMatcher {
    Exact(PathText),
    Prefix(PathText),
    Regex { regex: Regex, ignores_case: bool },
}

/// Hosts, in lower case.
#[derive(Debug)]
enum HostMatcher {
    Exact(String),
    /// All names that end with this text, which begins with a dot.
    Below(String),
}

impl Matcher {
    /// Reports whether the conditions name a method.
    #[must_use]
    pub fn names_method(&self, method: &Method) -> bool {
        self.methods.iter().any(|listed| listed.as_str().eq_ignore_ascii_case(method.as_str()))
    }

    /// Creates the matcher of each entry.
    pub(crate) fn all(from: &[Match], purpose: Purpose) -> Result<Vec<Self>, Nack> {
        from.iter().map(|entry| Self::new(entry, purpose)).collect()
    }

    /// Creates a matcher. Fails if a pattern, a method or a header name is not valid.
    pub fn new(from: &Match, purpose: Purpose) -> Result<Self, Nack> {
        let path = from.path().map(|path| PathMatcher::new(&path, purpose)).transpose()?;
        let methods = from.methods.iter().map(|method| {
            let upper = method.to_ascii_uppercase();
            let method = if purpose == Purpose::Limit { &upper } else { method };
            Method::from_bytes(method.as_bytes())
                .map_err(|_| Nack(format!("{method:?} is not an HTTP method")))
        });
        let mut methods = methods.collect::<Result<Vec<_>, _>>()?;
        // Applications respond to HEAD with the handler of GET, unless they have one of its own.
        if methods.contains(&Method::GET) && purpose == Purpose::Limit {
            methods.push(Method::HEAD);
        }
        let header = |entry: &NamedMatch| {
            let (name, value) = (header_name(&entry.name)?, ValueMatcher::new(entry)?);
            let value = if name == AUTHORIZATION { value.of_kept(purpose) } else { value };
            Ok((HeaderField::new(name), value))
        };
        let headers = from.headers.iter().map(header);
        let named = |entry: &NamedMatch| Ok((FieldName::new(&entry.name), ValueMatcher::new(entry)?));
        let query = from.query.iter().map(named);
        let cookies = from.cookies.iter().map(|entry| {
            let (name, value) = named(entry)?;
            Ok((name, value.of_kept(purpose)))
        });
        let client_cidrs = from.client_cidrs.iter().map(|text| {
            network(text).map(canonical_network).map_err(|error| Nack(format!("clientCIDRs: {error}")))
        });
        Ok(Self {
            purpose,
            path,
            methods,
            hosts: from.hosts.iter().map(|host| HostMatcher::new(host_of(host))).collect(),
            headers: headers.collect::<Result<_, Nack>>()?,
            query: query.collect::<Result<_, Nack>>()?,
            cookies: cookies.collect::<Result<_, Nack>>()?,
            client_cidrs: client_cidrs.collect::<Result<_, Nack>>()?,
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
        let (purpose, effort) = (self.purpose, &request.effort);
        self.has_path(path, effort)
            && (self.methods.is_empty() || self.has_method(request.method))
            && (self.hosts.is_empty() || self.has_host(request))
            && self.headers.iter().all(|(name, value)| value.matches(&request.header(name), purpose, effort))
            && self.query.iter().all(|(name, value)| value.matches(&request.parameter(name), purpose, effort))
            && self.cookies.iter().all(|(name, value)| value.matches(&request.cookie(name), purpose, effort))
            && (self.client_cidrs.is_empty() || self.has_client(address()))
    }

    /// Returns the first condition that a request does not fulfil, as a field of the entry, for operators: `path`, `headers[1]`.
    #[must_use]
    pub(crate) fn first_failing(
        &self,
        request: &RequestAttributes<'_>,
        path: &Readings<'_>,
        address: &mut impl FnMut() -> IpAddr,
    ) -> Option<String> {
        let (purpose, effort) = (self.purpose, &request.effort);
        if !self.has_path(path, effort) {
            return Some("path".to_owned());
        }
        if !self.methods.is_empty() && !self.has_method(request.method) {
            return Some("methods".to_owned());
        }
        if !self.hosts.is_empty() && !self.has_host(request) {
            return Some("hosts".to_owned());
        }
        let listed = |list: &str, failing: Option<usize>| failing.map(|at| format!("{list}[{at}]"));
        let headers = self
            .headers
            .iter()
            .position(|(name, value)| !value.matches(&request.header(name), purpose, effort));
        let query = self
            .query
            .iter()
            .position(|(name, value)| !value.matches(&request.parameter(name), purpose, effort));
        let cookies = self
            .cookies
            .iter()
            .position(|(name, value)| !value.matches(&request.cookie(name), purpose, effort));
        let values = listed("headers", headers).or_else(|| listed("query", query));
        values.or_else(|| listed("cookies", cookies)).or_else(|| {
            let has_client = self.client_cidrs.is_empty() || self.has_client(address());
            (!has_client).then(|| "clientCIDRs".to_owned())
        })
    }

    fn has_path(&self, path: &Readings<'_>, effort: &Effort) -> bool {
        let Some(condition) = &self.path else { return true };
        let mut is_first = true;
        let mut test = |reading: &Reading<'_>| {
            let is_first = std::mem::take(&mut is_first);
            note(1);
            let has_effort = is_first || effort.compare(1);
            // Without effort left, a limit applies, and an exemption does not.
            if has_effort {
                condition.matches(reading, self.purpose, effort, is_first)
            } else {
                self.purpose == Purpose::Limit
            }
        };
        match self.purpose {
            Purpose::Limit => path.any(test),
            Purpose::Exemption => path.all(&mut test),
        }
    }

    /// Reports whether the method is one of those of the conditions. Some servers take `post` for `POST`, and others do not.
    fn has_method(&self, method: &Method) -> bool {
        self.methods.iter().any(|listed| match self.purpose {
            Purpose::Limit => listed.as_str().eq_ignore_ascii_case(method.as_str()),
            Purpose::Exemption => listed == method,
        })
    }

    fn has_client(&self, address: IpAddr) -> bool {
        self.client_cidrs.iter().any(|network| network.contains(&address))
    }
}

impl Matcher {
    fn has_host(&self, request: &RequestAttributes<'_>) -> bool {
        let is_listed = |host: &str| self.hosts.iter().any(|condition| condition.matches(host));
        request.host().is_some_and(is_listed)
            || self.purpose == Purpose::Limit
                && request.any_reported_host(|host| !request.effort.compare(1) || is_listed(host))
    }
}

impl PathMatcher {
    fn new(PathMatch { pattern, case_sensitive }: &PathMatch, purpose: Purpose) -> Result<Self, Nack> {
        // Another spelling may be another resource, which is not exempt.
        let case_sensitive = &(*case_sensitive || purpose == Purpose::Exemption);
        let regex = |pattern: &str| {
            Ok(Self::Regex { regex: compile_regex(pattern, !case_sensitive)?, ignores_case: !case_sensitive })
        };
        Ok(match pattern {
            PathPattern::Exact(path) => Self::Exact(PathText::new(path, *case_sensitive)),
            PathPattern::Prefix(path) => Self::Prefix(PathText::new(path, *case_sensitive)),
            PathPattern::Template(template) => regex(&template_regex(template))?,
            PathPattern::Regex(pattern) => regex(pattern)?,
        })
    }

    #[inline]
    fn matches(&self, path: &Reading<'_>, purpose: Purpose, effort: &Effort, is_first: bool) -> bool {
        match self {
            Self::Exact(exact) => exact.equals(path),
            Self::Prefix(prefix) => prefix.is_prefix_of(path),
            Self::Regex { .. } if !effort.read(path.text().len(), is_first) => purpose == Purpose::Limit,
            Self::Regex { regex, ignores_case } => {
                // Applications take more letters for the same one than regular expressions do.
                let folded = || path.folded_text().is_some_and(|text| regex.is_match(text.as_bytes()));
                regex.is_match(path.text().as_bytes()) || *ignores_case && folded()
            }
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

/// Parses the name of a header. `host` is none: HTTP/2 has it elsewhere.
pub fn header_name(name: &str) -> Result<HeaderName, Nack> {
    match HeaderName::from_bytes(name.as_bytes()) {
        Ok(HOST) => Err(Nack("the header host cannot be used: match the request's hosts instead".into())),
        Ok(name) => Ok(name),
        Err(_) => Err(Nack(format!("{name:?} is not a header name"))),
    }
}

/// A condition on the values of one name.
#[derive(Debug)]
struct ValueMatcher {
    test: Test,
    not: bool,
    /// Whether a limit also applies to a value in another case: a server may give one request what another has brought (Jetty).
    ignores_case: bool,
}

#[derive(Debug)]
enum Test {
    Exact(Vec<u8>),
    Prefix(Vec<u8>),
    Regex(Regex),
    Present(bool),
}

impl ValueMatcher {
    fn new(from: &NamedMatch) -> Result<Self, Nack> {
        let test = match &from.value {
            ValueMatch::Exact(text) => Test::Exact(text.clone().into_bytes()),
            ValueMatch::Prefix(text) => Test::Prefix(text.clone().into_bytes()),
            ValueMatch::Regex(pattern) => Test::Regex(compile_regex(pattern, false)?),
            ValueMatch::Present(present) => Test::Present(*present),
        };
        Ok(Self { test, not: from.not, ignores_case: false })
    }

    /// Makes it a condition on what servers keep for the requests that follow, in whatever case these have it.
    fn of_kept(self, purpose: Purpose) -> Self {
        Self { ignores_case: purpose == Purpose::Limit && !self.not, ..self }
    }

    /// Reports whether the values of a request fulfil the condition. For a limit one way to see the request is enough, and
    /// for an exemption all ways must fulfil the condition. Applications that do not see a value under this name may see none.
    fn matches(&self, values: &Values<'_>, purpose: Purpose, effort: &Effort) -> bool {
        let in_doubt = purpose == Purpose::Limit;
        if !values.is_complete() {
            return in_doubt;
        }
        let mut is_seen_by_all = false;
        let exact = match &self.test {
            Test::Exact(exact) => Some(&**exact),
            Test::Prefix(_) | Test::Regex(_) | Test::Present(_) => None,
        };
        // The readings of few applications would meet a negated condition for everybody.
        let read_for = if self.not { Purpose::Exemption } else { purpose };
        for (n, (value, is_exact)) in values.readings(exact, read_for).enumerate() {
            is_seen_by_all |= is_exact;
            note(1);
            let has_effort = self.has_effort(value, effort, n == 0);
            let holds = if has_effort { self.holds(value) } else { in_doubt };
            match (purpose, holds) {
                (Purpose::Limit, true) => return true,
                (Purpose::Exemption, false) => return false,
                (Purpose::Limit, false) | (Purpose::Exemption, true) => {}
            }
        }
        if is_seen_by_all {
            return purpose == Purpose::Exemption;
        }
        matches!(self.test, Test::Present(false)) != self.not
    }

    /// Takes the effort of a test of a value.
    fn has_effort(&self, value: &[u8], effort: &Effort, is_first: bool) -> bool {
        match &self.test {
            Test::Regex(_) => effort.read(value.len(), is_first),
            Test::Exact(_) | Test::Prefix(_) | Test::Present(_) => is_first || effort.compare(1),
        }
    }

    fn holds(&self, value: &[u8]) -> bool {
        let passes = match &self.test {
            Test::Exact(exact) if self.ignores_case => value.eq_ignore_ascii_case(exact),
            Test::Exact(exact) => value == exact,
            Test::Prefix(prefix) if self.ignores_case => {
                value.get(..prefix.len()).is_some_and(|start| start.eq_ignore_ascii_case(prefix))
            }
            Test::Prefix(prefix) => value.starts_with(prefix),
            Test::Regex(regex) => regex.is_match(value),
            Test::Present(present) => *present,
        };
        passes != self.not
    }
}

/// Memory limit of a compiled regular expression, in bytes.
const REGEX_BYTES: usize = 1 << 18;

/// Memory limit of the cache that a regular expression fills while it matches, in bytes.
const REGEX_CACHE_BYTES: usize = 1 << 18;

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
    let name = segment.strip_prefix('{').and_then(|rest| rest.strip_suffix('}'));
    name.is_some_and(|name| !name.is_empty() && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_'))
}

fn compile_regex(pattern: &str, ignores_case: bool) -> Result<Regex, Nack> {
    full_match_regex(pattern, ignores_case)
        .map_err(|error| Nack(format!("invalid regular expression {pattern:?}: {error}")))
}
