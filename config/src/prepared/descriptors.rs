//! The descriptors of gateways' questions that a limit counts.

use crate::descriptor::Pair;
use crate::key::{Identity, KeyBuilder};
use crate::key_secret::KeySecret;
use crate::matches::DescriptorMatch;
use crate::policy::CompiledLimit;
use crate::prepared::exceptions::Exceptions;
use crate::prepared::rate_set::Choice;

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
