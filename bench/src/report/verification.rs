//! Facts that were verified while something was measured.

use serde::{Deserialize, Serialize};

/// Facts that hold, and facts that do not: then the measurement means nothing.
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
pub(crate) struct Verification {
    pub(crate) passed: Vec<String>,
    pub(crate) failed: Vec<String>,
}

impl Verification {
    /// Verifies that a count is as expected.
    pub(crate) fn expect(&mut self, what: &str, found: u64, expected: u64) {
        if found == expected {
            self.passed.push(format!("{what}: {expected}"));
        } else {
            self.failed.push(format!("{what}: {found} instead of {expected}"));
        }
    }

    /// Verifies that Sluice and the peer have the expected count.
    pub(crate) fn expect_both(&mut self, what: &str, ours: u64, peers: u64, expected: u64) {
        if ours == expected && peers == expected {
            self.passed.push(format!("{what}: {expected} (both)"));
        } else {
            self.expect(&format!("Sluice: {what}"), ours, expected);
            self.expect(&format!("peer: {what}"), peers, expected);
        }
    }

    /// Verifies that all of several contenders have the expected count.
    pub(crate) fn expect_all(&mut self, what: &str, found: &[(&str, u64)], expected: u64) {
        if found.iter().all(|&(_, count)| count == expected) {
            self.passed.push(format!("{what}: {expected} (all)"));
        } else {
            for (name, count) in found {
                self.expect(&format!("{name}: {what}"), *count, expected);
            }
        }
    }

    /// Adds an observation that nothing is expected of.
    pub(crate) fn note(&mut self, what: impl Into<String>) {
        self.passed.push(what.into());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_that_both_have_is_listed_once_and_a_wrong_one_by_its_side() {
        let mut verification = Verification::default();
        verification.expect_both("admitted", 5, 5, 5);
        assert_eq!(verification.passed, ["admitted: 5 (both)"]);
        verification.expect_both("denied", 5, 4, 5);
        assert_eq!(verification.failed, ["peer: denied: 4 instead of 5"]);
    }

    #[test]
    fn a_count_that_all_have_is_listed_once_and_a_wrong_one_by_its_name() {
        let mut verification = Verification::default();
        verification.expect_all("admitted", &[("a", 5), ("b", 5), ("c", 5)], 5);
        assert_eq!(verification.passed, ["admitted: 5 (all)"]);
        verification.expect_all("denied", &[("a", 5), ("b", 4)], 5);
        assert_eq!(verification.failed, ["b: denied: 4 instead of 5"]);
    }
}
