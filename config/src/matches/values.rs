//! Conditions on the values of headers, query parameters and cookies.

use regex::bytes::Regex;

use super::pattern::compile_regex;
use super::spec::{NamedMatch, ValueMatch};
use crate::effort::{Effort, note};
use crate::nack::Nack;
use crate::purpose::Purpose;
use crate::request::Values;

/// A condition on the values of one name.
#[derive(Debug)]
pub(super) struct ValueMatcher {
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
    pub(super) fn new(from: &NamedMatch) -> Result<Self, Nack> {
        let test = match &from.value {
            ValueMatch::Exact(text) => Test::Exact(text.clone().into_bytes()),
            ValueMatch::Prefix(text) => Test::Prefix(text.clone().into_bytes()),
            ValueMatch::Regex(pattern) => Test::Regex(compile_regex(pattern, false)?),
            ValueMatch::Present(present) => Test::Present(*present),
        };
        Ok(Self { test, not: from.not, ignores_case: false })
    }

    /// Makes it a condition on what servers keep for the requests that follow, in whatever case these have it.
    pub(super) fn of_kept(self, purpose: Purpose) -> Self {
        Self { ignores_case: purpose == Purpose::Limit && !self.not, ..self }
    }

    /// Reports whether the values of a request fulfil the condition. For a limit one way to see the request is enough, and
    /// for an exemption all ways must fulfil the condition. Applications that do not see a value under this name may see none.
    pub(super) fn matches(&self, values: &Values<'_>, purpose: Purpose, effort: &Effort) -> bool {
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
