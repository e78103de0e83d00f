//! The names of keys in Redis.

use std::sync::Arc;

use sluice_limiter::partition_share;

use crate::check::{Counter, KeyHash, LimitSpec};
use crate::redis::options::RedisOptions;
use crate::redis::partitions::Partitions;

/// Names the keys of counters: `PREFIX SCOPE:{PARTITION}:HASH`. With `keys` or `overflow` instead of the hash, the scripts name
/// the registry of a limit's keys in a partition, and the counter that new keys share when the partition is full.
#[derive(Debug, Clone)]
pub(crate) struct KeyNames {
    pub(crate) prefix: Arc<str>,
    pub(crate) partitions: Arc<Partitions>,
}

/// Largest share that the scripts take, far beyond the memory of a server.
const MAX_SHARE: u64 = 1 << 30;

impl RedisOptions {
    /// Returns the name of the key in Redis that holds the counter of a scope and a client's key.
    #[must_use]
    pub fn key_name(&self, scope: &str, key: KeyHash) -> String {
        KeyNames::new(self.prefix.as_str(), self.partitions).of_scope(scope, key)
    }
}

impl KeyNames {
    /// Names keys with this prefix in so many partitions.
    pub(crate) fn new(prefix: impl Into<Arc<str>>, partitions: u16) -> Self {
        Self { prefix: prefix.into(), partitions: Arc::new(Partitions::new(partitions)) }
    }

    /// Returns how many keys of a limit a partition takes; 0 for any number.
    pub(crate) fn share(&self, limit: &LimitSpec) -> u64 {
        match limit.max_keys {
            0 => 0,
            most => partition_share(most, self.partitions.count()).min(MAX_SHARE),
        }
    }

    /// Returns the part of a limit's maximum that is in use, in thousandths, if a partition has this number of keys.
    pub(super) fn used(&self, limit: &LimitSpec, keys: u64) -> u16 {
        let all = keys.saturating_mul(self.partitions.count()).saturating_mul(1000);
        (all / limit.max_keys.max(1)).min(1000) as u16
    }

    /// Returns the name of a key that holds nothing, for calls that only find out whether the server answers.
    pub(crate) fn probe(&self) -> Option<String> {
        self.partitions.tags().next().map(|tag| format!("{}probe:{{{tag}}}", self.prefix))
    }

    /// Returns the name of a counter's key.
    pub(crate) fn of_counter(&self, counter: &Counter) -> String {
        self.of(&counter.limit, counter.key)
    }

    /// Returns the name of the key that holds the counter of this limit and key.
    pub(super) fn of(&self, limit: &LimitSpec, key: KeyHash) -> String {
        self.of_scope(&limit.scope, key)
    }

    /// Returns the name of the key that holds the counter of this scope and key.
    pub(crate) fn of_scope(&self, scope: &str, key: KeyHash) -> String {
        let (partition, _) = self.partitions.of(key);
        let mut name = format!("{}{scope}:{{{partition}}}:", self.prefix);
        key.append_to(&mut name);
        name
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_name_consists_of_prefix_scope_partition_and_hash() {
        let names = KeyNames::new("sluice:", 64);
        let key = KeyHash(0xabcd_ef12_3456_7890_abcd_ef12_3456_7890);
        let limit = Arc::new(LimitSpec::new("ns/p/l", Vec::new()));
        let counter = Counter { limit, key, cost: 1 };
        assert_eq!(names.of_counter(&counter), "sluice:ns/p/l:{109}:q83vEjRWeJCrze8SNFZ4kA");
    }
}
