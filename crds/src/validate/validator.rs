//! Collects the violations of a policy.

use sluice_config::matcher::full_match_regex;
use sluice_limiter::MAX_PERIOD_MS;

use crate::duration;
use crate::violation::Violation;

/// Largest number of regular expressions in a policy. Each takes memory in every sidecar.
const MAX_REGEXES: usize = 64;

/// The violations found so far.
#[derive(Default)]
pub(super) struct Validator {
    pub(super) violations: Vec<Violation>,
    regexes: usize,
}

impl Validator {
    /// Adds a violation.
    pub(super) fn violation(&mut self, path: impl Into<String>, message: impl Into<String>) {
        self.violations.push(Violation::new(path, message));
    }

    /// Checks that exactly one field of a union is set. Each member is a field's name and whether it is set.
    pub(super) fn exactly_one(&mut self, path: &str, members: &[(&str, bool)]) {
        let set: Vec<_> = members.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
        if set.len() != 1 {
            let all: Vec<_> = members.iter().map(|(name, _)| *name).collect();
            let found =
                if set.is_empty() { "none is set".into() } else { format!("{} are set", set.join(" and ")) };
            self.violation(path, format!("exactly one of {} must be set, but {found}", all.join(", ")));
        }
    }

    /// Checks a duration of at most `max_millis` milliseconds; by default, of at most the longest period.
    pub(super) fn duration(&mut self, path: &str, text: &str, max_millis: Option<u64>) {
        let Err(message) = duration::up_to(text, max_millis.unwrap_or(MAX_PERIOD_MS)) else { return };
        self.violation(path, message);
    }

    /// Checks a regular expression, and the number of regular expressions in the policy.
    pub(super) fn regex(&mut self, path: &str, pattern: Option<&str>) {
        self.regexes += usize::from(pattern.is_some());
        if self.regexes > MAX_REGEXES {
            if self.regexes == MAX_REGEXES + 1 {
                self.violation(
                    format!("{path}.regex"),
                    format!("is one regular expression too many: a policy may have at most {MAX_REGEXES}"),
                );
            }
            return;
        }
        if let Some(Err(error)) = pattern.map(full_match_regex) {
            self.violation(format!("{path}.regex"), format!("is not a valid regular expression: {error}"));
        }
    }
}
