//! All of what makes a policy valid. Admission, the controller and `sluice check` call this and nothing else, so that
//! they cannot disagree.
//!
//! - [`counting`]: rates, algorithm and enforcement.
//! - [`concurrency`]: requests at a time.
//! - [`warnings`]: what is legal and probably wrong.

mod concurrency;
mod counting;
mod warnings;

use std::fmt;

use ipnet::IpNet;
use serde_json::Value;
use sluice_config::matcher::whole_regex;

use self::warnings::warnings;
use crate::rate_limit_policy::{HeaderMatch, Key, KeyPart, Limit, Match, PathMatch, RateLimitPolicy};
use crate::schema;

/// Something wrong with a policy: where, and what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The field, such as `spec.limits[0].rates[1].per`.
    pub path: String,
    /// What is wrong with it, and what is allowed.
    pub message: String,
}

impl Violation {
    /// Says what is wrong with a field.
    pub fn new(path: impl Into<String>, message: impl Into<String>) -> Self {
        Self { path: path.into(), message: message.into() }
    }
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.path, self.message)
    }
}

/// A policy without violations.
#[derive(Debug, Clone)]
pub struct ValidPolicy {
    pub(crate) policy: RateLimitPolicy,
    /// What is legal and probably wrong.
    pub warnings: Vec<Violation>,
}

impl ValidPolicy {
    /// Which pods of the namespace it is about.
    #[must_use]
    pub fn selector(&self) -> kube::core::Selector {
        // A selector that does not convert is a violation: here it does.
        self.policy.spec.selector.clone().and_then(|selector| selector.try_into().ok()).unwrap_or_default()
    }
}

/// Validates an object as JSON: first against the schema, then what a schema cannot say.
pub fn validate(object: &Value) -> Result<ValidPolicy, Vec<Violation>> {
    let violations = schema::violations(object);
    if !violations.is_empty() {
        return Err(violations);
    }
    let policy: RateLimitPolicy = serde_json::from_value(object.clone())
        .map_err(|error| vec![Violation::new("spec", error.to_string())])?;
    let mut found = Found::default();
    found.policy(&policy);
    if found.violations.is_empty() {
        let warnings = warnings(&policy);
        Ok(ValidPolicy { policy, warnings })
    } else {
        Err(found.violations)
    }
}

/// How many regular expressions a policy may have: each costs memory in every sidecar.
const MAX_REGEXES: usize = 64;

#[derive(Default)]
struct Found {
    violations: Vec<Violation>,
    regexes: usize,
}

impl Found {
    fn wrong(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.violations.push(Violation::new(path, message));
    }

    fn policy(&mut self, policy: &RateLimitPolicy) {
        let spec = &policy.spec;
        if let Some(selector) = &spec.selector
            && let Err(error) = kube::core::Selector::try_from(selector.clone())
        {
            self.wrong("spec.selector", error.to_string());
        }
        if let Some(address) = &spec.client_address {
            for (n, net) in address.trusted_proxies.iter().enumerate() {
                if net.parse::<IpNet>().is_err() {
                    self.wrong(
                        format!("spec.clientAddress.trustedProxies[{n}]"),
                        format!("{net:?} is no network: write it as 10.0.0.0/8 or 2001:db8::/32"),
                    );
                }
            }
        }
        for (n, limit) in spec.limits.iter().enumerate() {
            self.limit(&format!("spec.limits[{n}]"), limit);
        }
        self.concurrency(spec);
    }

    fn limit(&mut self, path: &str, limit: &Limit) {
        self.who(path, &limit.matches, limit.key.as_ref());
        self.counting(path, limit);
    }

    /// Which requests, and whose.
    fn who(&mut self, path: &str, matches: &[Match], key: Option<&Key>) {
        for (n, entry) in matches.iter().enumerate() {
            let path = format!("{path}.matches[{n}]");
            if entry.path.is_none() && entry.methods.is_empty() && entry.headers.is_empty() {
                self.wrong(&path, "says nothing: at least one of path, methods, headers is needed; for all requests leave `matches` out");
            }
            if let Some(test) = &entry.path {
                self.path_match(&format!("{path}.path"), test);
            }
            for (n, test) in entry.headers.iter().enumerate() {
                self.header_match(&format!("{path}.headers[{n}]"), test);
            }
        }
        for (n, part) in key.iter().flat_map(|key| &key.parts).enumerate() {
            let KeyPart { header, client_ip } = part;
            self.exactly_one(
                &format!("{path}.key.parts[{n}]"),
                &[("header", header.is_some()), ("clientIP", client_ip.is_some())],
            );
        }
    }

    fn path_match(&mut self, path: &str, test: &PathMatch) {
        let PathMatch { exact, prefix, regex } = test;
        self.exactly_one(
            path,
            &[("exact", exact.is_some()), ("prefix", prefix.is_some()), ("regex", regex.is_some())],
        );
        self.regex(path, regex.as_deref());
        for (name, said) in [("exact", exact), ("prefix", prefix)] {
            if let Some(said) = said {
                let normal = sluice_config::path::normalize(said);
                if normal != *said {
                    self.wrong(
                        format!("{path}.{name}"),
                        format!("{said:?} would never match: paths are compared decoded and without dot segments, write {normal:?}"),
                    );
                }
            }
        }
    }

    fn header_match(&mut self, path: &str, test: &HeaderMatch) {
        let HeaderMatch { name: _, exact, regex, present } = test;
        self.exactly_one(
            path,
            &[("exact", exact.is_some()), ("regex", regex.is_some()), ("present", present.is_some())],
        );
        self.regex(path, regex.as_deref());
    }

    fn regex(&mut self, path: &str, pattern: Option<&str>) {
        self.regexes += usize::from(pattern.is_some());
        if self.regexes > MAX_REGEXES {
            if self.regexes == MAX_REGEXES + 1 {
                self.wrong(
                    format!("{path}.regex"),
                    format!("is one too many: a policy may have {MAX_REGEXES} regular expressions"),
                );
            }
            return;
        }
        if let Some(Err(error)) = pattern.map(whole_regex) {
            self.wrong(format!("{path}.regex"), format!("is no regular expression: {error}"));
        }
    }

    fn exactly_one(&mut self, path: &str, members: &[(&str, bool)]) {
        let said: Vec<_> = members.iter().filter(|(_, said)| *said).map(|(name, _)| *name).collect();
        if said.len() != 1 {
            let all: Vec<_> = members.iter().map(|(name, _)| *name).collect();
            let got = if said.is_empty() {
                "none is there".into()
            } else {
                format!("there are {}", said.join(" and "))
            };
            self.wrong(path, format!("exactly one of {} is needed, {got}", all.join(", ")));
        }
    }
}
