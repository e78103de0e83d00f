//! Finds the limits that may apply to a request among a thousand, without a look at the others: by the path or the host
//! that their conditions name. It never leaves out a limit that applies; the limit itself decides.
//!
//! Exact paths and prefixes are in a tree of segments, templates and regular expressions in one automaton, and hosts in a
//! table. Limits whose conditions name neither path nor host are candidates for every request.

#[cfg(test)]
mod tests;

use std::collections::HashMap;

use regex::bytes::{RegexSet, RegexSetBuilder};
use smallvec::SmallVec;

use super::exceptions::Exceptions;
use super::rate_set::Choice;
use crate::descriptor::Pair;
use crate::effort::note;
use crate::key::{Identity, KeyBuilder};
use crate::key_secret::KeySecret;
use crate::matches::{DescriptorMatch, Match, PathMatch, PathPattern, template_regex};
use crate::path::{Reading, Readings, folded, normalize};
use crate::policy::CompiledLimit;
use crate::request::RequestAttributes;

/// Memory limit of the automaton and of the cache that it fills, in bytes. If it needs more, limits with regular
/// expressions are candidates for every request.
const AUTOMATON_BYTES: usize = 16 << 20;
const AUTOMATON_CACHE_BYTES: usize = 4 << 20;

/// Number of limits up to which looking at each is cheaper than the index.
const FEW: usize = 8;

/// A set of limits, by their number.
pub type Candidates = SmallVec<[u32; 16]>;

/// The index of some limits.
#[derive(Debug, Default)]
pub struct LimitIndex {
    /// Number of limits.
    count: u32,
    /// Candidates for every request.
    always: Vec<u32>,
    /// Segments of paths. The first is the root.
    paths: Vec<PathSegment>,
    /// The automaton, and the limit of each of its expressions.
    automaton: Option<(RegexSet, Vec<u32>)>,
    hosts: HashMap<Box<[u8]>, Vec<u32>>,
    /// Limits for all hosts below a name, by the name.
    parents: HashMap<Box<[u8]>, Vec<u32>>,
}

/// A segment of paths, in lower case.
#[derive(Debug, Default)]
struct PathSegment {
    children: HashMap<Box<[u8]>, usize>,
    /// Limits for the path that ends here.
    exact: Vec<u32>,
    /// Limits for this path and all that continue it.
    prefix: Vec<u32>,
}

impl LimitIndex {
    /// Indexes limits, which are numbered in their order.
    #[must_use]
    pub fn new<'a>(limits: impl IntoIterator<Item = &'a [Match]>) -> Self {
        let mut index = Self { paths: vec![PathSegment::default()], ..Self::default() };
        let mut expressions = Vec::new();
        for (number, matches) in (0..).zip(limits) {
            index.count = number + 1;
            if matches.is_empty()
                || matches.iter().any(|entry| entry.path.is_none() && entry.hosts.is_empty())
            {
                index.always.push(number);
                continue;
            }
            for entry in matches {
                match entry.path() {
                    Some(path) => index.add_path(number, &path, &mut expressions),
                    None => entry.hosts.iter().for_each(|host| index.add_host(number, host)),
                }
            }
        }
        index.add_automaton(expressions);
        index
    }

    fn add_path(&mut self, number: u32, path: &PathMatch, expressions: &mut Vec<(String, u32)>) {
        let flags = if path.case_sensitive { "s" } else { "si" };
        let (text, is_prefix) = match &path.pattern {
            PathPattern::Exact(text) => (text, false),
            PathPattern::Prefix(text) => (text, true),
            PathPattern::Template(template) => {
                return expressions.push((format!("(?{flags}:^(?:{})$)", template_regex(template)), number));
            }
            PathPattern::Regex(pattern) => {
                return expressions.push((format!("(?{flags}:^(?:{pattern})$)"), number));
            }
        };
        let text = folded(&normalize(text));
        let mut at = 0;
        for segment in segments(&text) {
            let new = self.paths.len();
            at = *self.paths[at].children.entry(segment.into()).or_insert(new);
            if at == new {
                self.paths.push(PathSegment::default());
            }
        }
        let limits = if is_prefix { &mut self.paths[at].prefix } else { &mut self.paths[at].exact };
        limits.push(number);
    }

    fn add_host(&mut self, number: u32, host: &str) {
        let host = folded(host);
        match host.strip_prefix(b"*.") {
            Some(parent) => self.parents.entry(parent.into()).or_default().push(number),
            None => self.hosts.entry(host.as_slice().into()).or_default().push(number),
        }
    }

    fn add_automaton(&mut self, expressions: Vec<(String, u32)>) {
        if expressions.is_empty() {
            return;
        }
        let set = RegexSetBuilder::new(expressions.iter().map(|(pattern, _)| pattern))
            .size_limit(AUTOMATON_BYTES)
            .dfa_size_limit(AUTOMATON_CACHE_BYTES)
            .build();
        let limits = expressions.into_iter().map(|(_, number)| number);
        match set {
            Ok(set) => self.automaton = Some((set, limits.collect())),
            Err(_) => self.always.extend(limits),
        }
    }

    /// Returns the limits that may apply to a request, in their order. `path` has the readings of its path.
    #[must_use]
    pub fn candidates(&self, request: &RequestAttributes<'_>, path: &Readings<'_>) -> Candidates {
        if self.count as usize <= FEW {
            return (0..self.count).collect();
        }
        let mut found = Candidates::from_slice(&self.always);
        path.any(|reading| {
            self.find_path(reading, &mut found);
            false
        });
        if (!self.hosts.is_empty() || !self.parents.is_empty())
            && let Some(host) = request.host()
        {
            self.find_host(&folded(host), &mut found);
        }
        found.sort_unstable();
        found.dedup();
        found
    }

    fn find_path(&self, reading: &Reading<'_>, found: &mut Candidates) {
        note(reading.text().len());
        if self.paths.len() > 1 || !self.paths[0].prefix.is_empty() || !self.paths[0].exact.is_empty() {
            let text = reading.folded();
            let mut at = (text.is_empty() || text.starts_with(b"/")).then_some(&self.paths[0]);
            let mut rest = segments(&text);
            while let Some(segment) = at {
                found.extend_from_slice(&segment.prefix);
                at = match rest.next() {
                    Some(next) => segment.children.get(next).map(|child| &self.paths[*child]),
                    None => {
                        found.extend_from_slice(&segment.exact);
                        None
                    }
                };
            }
        }
        if let Some((set, limits)) = &self.automaton {
            for text in std::iter::once(reading.text()).chain(reading.folded_text()) {
                found.extend(set.matches(text.as_bytes()).iter().map(|expression| limits[expression]));
            }
        }
    }

    fn find_host(&self, host: &[u8], found: &mut Candidates) {
        found.extend(self.hosts.get(host).into_iter().flatten().copied());
        let mut rest = host;
        while let Some(dot) = rest.iter().position(|byte| *byte == b'.') {
            rest = &rest[dot + 1..];
            found.extend(self.parents.get(rest).into_iter().flatten().copied());
        }
    }
}

/// Returns the segments of a path that begins with a slash. The root has none.
fn segments(path: &[u8]) -> impl Iterator<Item = &[u8]> {
    let rest = path.strip_prefix(b"/").unwrap_or(path);
    rest.split(|byte| *byte == b'/').filter(move |_| !rest.is_empty())
}

/// Reports whether a limit may apply to any request: nothing that it requires excludes others that require something else.
#[must_use]
pub fn applies_to_all(limit: &CompiledLimit) -> bool {
    limit.when.is_none() && (limit.matches.is_empty() || limit.matches.iter().any(Match::holds_for_all))
}

/// The descriptors that a limit counts, and where their clients are.
#[derive(Debug)]
pub(super) struct DescriptorLimit {
    conditions: Vec<DescriptorMatch>,
    /// Keys of the entries whose values are the parts of the limit's key.
    entry_keys: Vec<String>,
    /// Largest number of requests that a descriptor may bring along in place of the rate's; `None` if none may.
    pub(super) max_override: Option<u64>,
}

impl DescriptorLimit {
    /// Returns `None` if a limit is for requests only.
    pub(super) fn of(limit: &CompiledLimit) -> Option<Self> {
        let conditions: Vec<_> = limit.matches.iter().filter_map(|entry| entry.rls.clone()).collect();
        let entry_keys = limit.key.iter().filter_map(|part| part.entry_key().map(str::to_owned)).collect();
        let max_override = limit.max_override;
        (!conditions.is_empty()).then_some(Self { conditions, entry_keys, max_override })
    }

    /// Iterates over the domains of its conditions.
    pub(super) fn domains(&self) -> impl Iterator<Item = &str> {
        self.conditions.iter().map(|condition| condition.domain.as_str())
    }

    /// Reports whether a condition holds for a descriptor of a domain.
    pub(super) fn counts(&self, domain: &[u8], pairs: &[Pair<'_>]) -> bool {
        let mut conditions = self.conditions.iter();
        conditions.any(|condition| condition.domain.as_bytes() == domain && condition.matches(pairs))
    }

    /// Returns the client of a descriptor, and what an override grants it. It has the key of a request with the same values.
    pub(super) fn client(
        &self,
        key: &KeyBuilder,
        exceptions: &Exceptions,
        pairs: &[Pair<'_>],
        secret: &KeySecret,
    ) -> (Identity, Option<Choice>) {
        let value = |key: &String| {
            let pair = pairs.iter().find(|pair| pair.key == key.as_bytes());
            pair.map(|pair| pair.value)
        };
        let first = self.entry_keys.first().and_then(value);
        let granted = first.and_then(|first| exceptions.granted(&key.client_name(first)));
        (key.identify_entries(secret, self.entry_keys.iter().map(value)), granted)
    }
}
