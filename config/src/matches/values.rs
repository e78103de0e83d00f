//! Conditions on the values of headers, query parameters and cookies.

use regex::bytes::Regex;

use super::pattern::compile_regex;
use super::spec::{NamedMatch, Purpose, ValueMatch};
use crate::nack::Nack;

/// A condition on the values of one name.
#[derive(Debug)]
pub(super) struct ValueMatcher {
    test: Test,
    not: bool,
}

#[derive(Debug)]
enum Test {
    Exact(Vec<u8>),
    Prefix(Vec<u8>),
    Regex(Regex),
    Present(bool),
}

impl ValueMatcher {
    pub(super) fn new(from: &NamedMatch) -> Result<Self, Nack> {
        let test = match &from.value {
            ValueMatch::Exact(text) => Test::Exact(text.clone().into_bytes()),
            ValueMatch::Prefix(text) => Test::Prefix(text.clone().into_bytes()),
            ValueMatch::Regex(pattern) => Test::Regex(compile_regex(pattern, false)?),
            ValueMatch::Present(present) => Test::Present(*present),
        };
        Ok(Self { test, not: from.not })
    }

    /// Reports whether the values of a request fulfil the condition. Each comes with whether all applications see it
    /// under this name; those that do not may see no value at all. For a limit one way to see the request is enough, and
    /// for an exemption all ways must fulfil the condition.
    pub(super) fn matches<V: AsRef<[u8]>>(
        &self,
        values: impl IntoIterator<Item = (V, bool)>,
        purpose: Purpose,
    ) -> bool {
        let mut is_seen_by_all = false;
        for (value, is_exact) in values {
            is_seen_by_all |= is_exact;
            match (purpose, self.holds(&value)) {
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

    fn holds(&self, value: &impl AsRef<[u8]>) -> bool {
        let value = value.as_ref();
        let passes = match &self.test {
            Test::Exact(exact) => value == exact,
            Test::Prefix(prefix) => value.starts_with(prefix),
            Test::Regex(regex) => regex.is_match(value),
            Test::Present(present) => *present,
        };
        passes != self.not
    }
}
