//! Descriptors: what a gateway says of a request, as pairs of a key and a value, and the rules that a domain has for them. The words
//! are those of Envoy's global rate limiting.
//!
//! The rules of a domain are a tree, and the most specific path to a rule decides, as in envoyproxy/ratelimit: at each level a
//! pair is looked for as `KEY_VALUE`, then among the patterns with wildcards, in their order, then as `KEY`. A rule decides about
//! descriptors that end where it stands. So one descriptor has one rule at most.

use std::collections::HashMap;
use std::hash::Hasher as _;
use std::sync::Arc;

use siphasher::sip128::{Hasher128 as _, SipHasher24};
use sluice_limiter::Rate;
use smallvec::SmallVec;

use crate::key_secret::KeySecret;

/// Kind of the part of a key that is a pair of a descriptor. It must never be renumbered: every key would change.
pub(crate) const DESCRIPTOR_PAIR: u8 = 13;

/// Name under which an answer's metadata has the id of a reservation, and key of the entry by which a descriptor settles it.
pub const RESERVATION: &str = "sluice_reservation";

/// A pair of a descriptor. Envoy copies bytes of headers into it, which need not be UTF-8.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair<'a> {
    /// The key, such as `remote_address`.
    pub key: &'a [u8],
    /// The value.
    pub value: &'a [u8],
}

/// The rules of a domain.
#[derive(Debug, Default)]
pub struct DescriptorRules {
    root: RuleNode,
}

/// A level of the tree.
#[derive(Debug, Default)]
struct RuleNode {
    /// The next level by `KEY` or `KEY_VALUE`.
    children: HashMap<Box<[u8]>, RuleNode>,
    /// The next level by a pattern of `KEY_VALUE`, in the order of the configuration.
    patterns: Vec<(Pattern, RuleNode)>,
    rule: Option<Rule>,
    /// The value in place of the client's, for a level whose clients share one counter.
    shared_value: Option<Box<[u8]>>,
}

/// A text in which each `*` stands for any bytes.
#[derive(Debug, PartialEq, Eq)]
struct Pattern(Vec<Box<[u8]>>);

impl Pattern {
    fn new(text: &str) -> Self {
        Self(text.split('*').map(|part| part.as_bytes().into()).collect())
    }

    fn matches(&self, text: &[u8]) -> bool {
        let [first, middle @ .., last] = &self.0[..] else { return self.0[0].as_ref() == text };
        let Some(mut rest) = text.strip_prefix(&**first).and_then(|rest| rest.strip_suffix(&**last)) else {
            return false;
        };
        for part in middle.iter().filter(|part| !part.is_empty()) {
            match rest.windows(part.len()).position(|window| window == &**part) {
                Some(at) => rest = &rest[at + part.len()..],
                None => return false,
            }
        }
        true
    }
}

/// A rule: what a descriptor may do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rule {
    /// How much it admits.
    pub allowance: RuleAllowance,
    /// Name by which other rules may replace it; empty without one.
    pub name: Arc<str>,
    /// Names of the rules that it replaces in the same request.
    pub replaces: Vec<Arc<str>>,
    /// Whether a denial is only told in the metadata of the answer.
    pub is_quota: bool,
    /// Whether a denial is only counted.
    pub is_shadow: bool,
}

/// How much a rule admits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RuleAllowance {
    /// As much as the limit with this number in its policy.
    Limit(u16),
    /// All requests, without counting them.
    Unlimited,
    /// No request. The rate, which has no requests, says for which period.
    Nothing(RateUnit),
}

/// A unit of time of ratelimit's configuration, by its number in `RateLimitResponse.RateLimit.Unit`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)]
pub enum RateUnit {
    Second = 1,
    Minute = 2,
    Hour = 3,
    Day = 4,
    Month = 5,
    Year = 6,
    Week = 7,
}

impl RateUnit {
    /// All units.
    pub const ALL: [Self; 7] =
        [Self::Second, Self::Minute, Self::Hour, Self::Day, Self::Month, Self::Year, Self::Week];

    /// Returns the unit with this number.
    #[must_use]
    pub fn from_number(number: i32) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| *unit as i32 == number)
    }

    /// Returns the name, as in YAML.
    #[must_use]
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Second => "second",
            Self::Minute => "minute",
            Self::Hour => "hour",
            Self::Day => "day",
            Self::Month => "month",
            Self::Year => "year",
            Self::Week => "week",
        }
    }

    /// Returns the unit with a name, in any case.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|unit| unit.as_str().eq_ignore_ascii_case(name))
    }

    /// Returns the length in seconds. A month has 30 days and a year 365, as in ratelimit.
    #[must_use]
    pub fn seconds(self) -> u64 {
        const DAY: u64 = 24 * 60 * 60;
        match self {
            Self::Second => 1,
            Self::Minute => 60,
            Self::Hour => 60 * 60,
            Self::Day => DAY,
            Self::Week => 7 * DAY,
            Self::Month => 30 * DAY,
            Self::Year => 365 * DAY,
        }
    }

    /// Returns the longest unit of which a period is a multiple, and the multiple. A period with a part of a second counts as the
    /// next whole second.
    #[must_use]
    pub fn of(rate: &Rate) -> (Self, u32) {
        let seconds = rate.period.millis().div_ceil(1000);
        let mut units = Self::ALL;
        units.sort_by_key(|unit| std::cmp::Reverse(unit.seconds()));
        let unit =
            units.into_iter().find(|unit| seconds.is_multiple_of(unit.seconds())).unwrap_or(Self::Second);
        (unit, u32::try_from(seconds / unit.seconds()).unwrap_or(u32::MAX))
    }
}

/// A rule that was found for a descriptor.
#[derive(Debug)]
pub struct Found<'a> {
    /// The rule.
    pub rule: &'a Rule,
    /// For each pair, the value that takes the place of the client's in the key.
    shared_values: SmallVec<[Option<&'a [u8]>; 4]>,
}

impl Found<'_> {
    /// Returns the key of the counter: a hash of all pairs.
    #[must_use]
    pub fn key(&self, pairs: &[Pair<'_>], secret: &KeySecret) -> u128 {
        let shared = self.shared_values.iter().copied().chain(std::iter::repeat(None));
        hash(
            pairs
                .iter()
                .zip(shared)
                .map(|(pair, shared)| Pair { value: shared.unwrap_or(pair.value), ..*pair }),
            secret,
        )
    }
}

/// Returns the key of the counter of a descriptor: a hash of all its pairs.
#[must_use]
pub fn descriptor_key(pairs: &[Pair<'_>], secret: &KeySecret) -> u128 {
    hash(pairs.iter().copied(), secret)
}

fn hash<'a>(pairs: impl Iterator<Item = Pair<'a>>, secret: &KeySecret) -> u128 {
    let mut hasher = SipHasher24::new_with_key(secret.bytes());
    for pair in pairs {
        // A part as operators name it, with the key before the value.
        hasher.write(&[DESCRIPTOR_PAIR]);
        hasher.write(&((pair.key.len() + 1 + pair.value.len()) as u64).to_le_bytes());
        hasher.write(pair.key);
        hasher.write(&[0]);
        hasher.write(pair.value);
    }
    hasher.finish128().as_u128()
}

/// A level of the configuration: a key, and the value if it names one.
#[derive(Debug, Clone, Copy)]
pub struct Level<'a> {
    /// The key.
    pub key: &'a str,
    /// The value; empty for any.
    pub value: &'a str,
    /// Whether all values that match a pattern share one counter.
    pub shares_threshold: bool,
}

/// A configuration has two rules, or levels, for the same path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the key is repeated")]
pub struct Repeated;

impl Level<'_> {
    fn composite(&self) -> String {
        if self.value.is_empty() { self.key.to_owned() } else { format!("{}_{}", self.key, self.value) }
    }
}

impl DescriptorRules {
    /// Adds a level below those of `path`, which were added before, with its rule if it has one.
    ///
    /// # Errors
    /// There is such a level already.
    pub fn add(&mut self, path: &[Level<'_>], rule: Option<Rule>) -> Result<(), Repeated> {
        let Some((level, parents)) = path.split_last() else { return Ok(()) };
        let node = parents.iter().fold(&mut self.root, |node, parent| node.child(&parent.composite()));
        let composite = level.composite();
        if node.has(&composite) {
            return Err(Repeated);
        }
        let child = node.child(&composite);
        child.rule = rule;
        child.shared_value = level.shares_threshold.then(|| level.value.as_bytes().into());
        Ok(())
    }

    /// Finds the rule of a descriptor.
    #[must_use]
    pub fn find(&self, pairs: &[Pair<'_>]) -> Option<Found<'_>> {
        let (mut node, mut shared_values) = (&self.root, SmallVec::new());
        let mut composite = SmallVec::<[u8; 128]>::new();
        for pair in pairs {
            composite.clear();
            composite.extend_from_slice(pair.key);
            composite.push(b'_');
            composite.extend_from_slice(pair.value);
            node = node.next(&composite, pair.key)?;
            shared_values.push(node.shared_value.as_deref());
        }
        Some(Found { rule: node.rule.as_ref()?, shared_values })
    }
}

impl RuleNode {
    fn has(&self, composite: &str) -> bool {
        self.children.contains_key(composite.as_bytes())
            || composite.contains('*')
                && self.patterns.iter().any(|(known, _)| *known == Pattern::new(composite))
    }

    fn child(&mut self, composite: &str) -> &mut Self {
        if !composite.contains('*') {
            return self.children.entry(composite.as_bytes().into()).or_default();
        }
        let pattern = Pattern::new(composite);
        let at = self.patterns.iter().position(|(known, _)| *known == pattern).unwrap_or_else(|| {
            self.patterns.push((pattern, Self::default()));
            self.patterns.len() - 1
        });
        &mut self.patterns[at].1
    }

    fn next(&self, composite: &[u8], key: &[u8]) -> Option<&Self> {
        let by_pattern =
            || self.patterns.iter().find(|(pattern, _)| pattern.matches(composite)).map(|(_, node)| node);
        self.children.get(composite).or_else(by_pattern).or_else(|| self.children.get(key))
    }
}

/// Describes a descriptor for operators. Only the values of public keys are shown, and those that a rule may name are none: a value
/// can be a secret of a client.
#[must_use]
pub fn describe(pairs: &[Pair<'_>], is_public: impl Fn(&[u8]) -> bool) -> String {
    let mut text = String::new();
    for pair in pairs {
        if !text.is_empty() {
            text.push_str(", ");
        }
        text.push_str(&String::from_utf8_lossy(pair.key));
        if is_public(pair.key) {
            text.push('=');
            text.push_str(&String::from_utf8_lossy(pair.value));
        }
    }
    text
}

/// Writes the part of a key that is a pair, from its key and the value that an operator names.
pub(crate) fn named_pair(key: &str, value: &[u8]) -> Vec<u8> {
    [key.as_bytes(), &[0], value].concat()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rule(number: u16) -> Option<Rule> {
        let allowance = RuleAllowance::Limit(number);
        Some(Rule { allowance, name: "".into(), replaces: Vec::new(), is_quota: false, is_shadow: false })
    }

    fn level<'a>(key: &'a str, value: &'a str) -> Level<'a> {
        Level { key, value, shares_threshold: false }
    }

    fn pairs<'a>(list: &[(&'a str, &'a str)]) -> Vec<Pair<'a>> {
        list.iter().map(|(key, value)| Pair { key: key.as_bytes(), value: value.as_bytes() }).collect()
    }

    fn found(rules: &DescriptorRules, list: &[(&str, &str)]) -> Option<u16> {
        match rules.find(&pairs(list))?.rule.allowance {
            RuleAllowance::Limit(number) => Some(number),
            RuleAllowance::Unlimited | RuleAllowance::Nothing(_) => None,
        }
    }

    #[test]
    fn the_most_specific_rule_decides_and_only_about_descriptors_that_end_at_it() {
        let mut rules = DescriptorRules::default();
        rules.add(&[level("user", "")], rule(1)).unwrap();
        rules.add(&[level("user", "alice")], rule(2)).unwrap();
        rules.add(&[level("user", "b*")], rule(3)).unwrap();
        rules.add(&[level("user", "bo*")], rule(4)).unwrap();
        rules.add(&[level("path", "/api/*/items")], None).unwrap();
        rules.add(&[level("path", "/api/*/items"), level("user", "")], rule(5)).unwrap();
        assert_eq!(rules.add(&[level("user", "b*")], rule(9)), Err(Repeated));
        assert_eq!(rules.add(&[level("user", "alice")], None), Err(Repeated));
        assert_eq!(found(&rules, &[("user", "zoe")]), Some(1));
        assert_eq!(found(&rules, &[("user", "alice")]), Some(2));
        assert_eq!(found(&rules, &[("user", "bob")]), Some(3), "the first pattern that matches");
        assert_eq!(found(&rules, &[("user", "alice"), ("x", "y")]), None, "it goes on below");
        assert_eq!(found(&rules, &[("path", "/api/7/items")]), None, "the level has no rule");
        assert_eq!(found(&rules, &[("path", "/api/7/items"), ("user", "x")]), Some(5));
        assert_eq!(found(&rules, &[("path", "/api/items"), ("user", "x")]), None);
        assert_eq!(found(&rules, &[]), None);
    }

    #[test]
    fn every_pair_is_a_part_of_the_key_unless_a_pattern_shares_its_counter() {
        let secret = KeySecret::new([1; 16]);
        let mut rules = DescriptorRules::default();
        rules.add(&[level("user", "")], rule(1)).unwrap();
        rules.add(&[Level { key: "file", value: "a*", shares_threshold: true }], rule(2)).unwrap();
        let key = |list: &[(&str, &str)]| rules.find(&pairs(list)).unwrap().key(&pairs(list), &secret);
        assert_ne!(key(&[("user", "a")]), key(&[("user", "b")]));
        assert_eq!(key(&[("file", "a1")]), key(&[("file", "a2")]));
        let bytes = [Pair { key: b"user", value: &[0xff] }];
        assert_ne!(descriptor_key(&bytes, &secret), key(&[("user", "\u{fffd}")]));
    }

    #[test]
    fn a_period_is_named_by_the_longest_unit() {
        let rate = |millis| Rate {
            requests: sluice_limiter::Requests::new(1).unwrap(),
            period: sluice_limiter::Period::from_millis(millis).unwrap(),
            algorithm: sluice_limiter::Algorithm::FIXED_WINDOW,
            soft: None,
            count_denied: false,
        };
        for (millis, expected) in [
            (1_000, (RateUnit::Second, 1)),
            (60_000, (RateUnit::Minute, 1)),
            (90_000, (RateUnit::Second, 90)),
            (7_200_000, (RateUnit::Hour, 2)),
            (7 * 86_400_000, (RateUnit::Week, 1)),
            (500, (RateUnit::Second, 1)),
        ] {
            assert_eq!(RateUnit::of(&rate(millis)), expected, "{millis}");
        }
        assert_eq!(RateUnit::from_name("WEEK"), Some(RateUnit::Week));
        assert_eq!(RateUnit::from_number(0), None);
    }

    #[test]
    fn only_public_values_are_shown() {
        let list = pairs(&[("remote_address", "192.0.2.1"), ("api_key", "s3cret")]);
        assert_eq!(describe(&list, |key| key == b"remote_address"), "remote_address=192.0.2.1, api_key");
    }
}
