//! Content that policies refer to by its hash, prepared once for all policies that do.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::nack::Nack;
use crate::overrides::OverrideTable;
use crate::policy::{BlobHash, CompiledPolicy, LimitKind};

/// Content by its hash.
#[derive(Debug, Clone, Default)]
pub struct Blobs(BTreeMap<BlobHash, Result<Arc<OverrideTable>, Nack>>);

impl Blobs {
    /// Adds content. Content that cannot be used leads to a nack of the policies that refer to it.
    pub fn insert(&mut self, bytes: Arc<[u8]>) {
        self.0.entry(BlobHash::of(&bytes)).or_insert_with(|| OverrideTable::new(bytes).map(Arc::new));
    }

    /// Records that content was not taken, which leads to a nack of the policies that refer to it.
    pub fn refuse(&mut self, hash: BlobHash, nack: Nack) {
        self.0.entry(hash).or_insert(Err(nack));
    }

    /// Returns the size of all content, in bytes.
    #[must_use]
    pub fn size(&self) -> usize {
        self.0.values().flatten().map(|table| table.size()).sum()
    }

    /// Reports whether there is content with a hash.
    #[must_use]
    pub fn contains(&self, hash: &BlobHash) -> bool {
        self.0.contains_key(hash)
    }

    /// Removes the content whose hash does not satisfy the predicate.
    pub fn retain(&mut self, mut keeps: impl FnMut(&BlobHash) -> bool) {
        self.0.retain(|hash, _| keeps(hash));
    }

    /// Returns a table of overrides.
    pub(super) fn overrides(&self, hash: &BlobHash) -> Result<Arc<OverrideTable>, Nack> {
        self.0.get(hash).cloned().unwrap_or_else(|| Err(Nack(format!("the content {hash} has not arrived"))))
    }
}

/// Returns the hashes of the content that a policy in JSON refers to. A policy that cannot be parsed refers to none.
#[must_use]
pub fn references_of(json: &str) -> Vec<BlobHash> {
    let Ok(policy) = serde_json::from_str::<CompiledPolicy>(json) else { return Vec::new() };
    let overrides = policy.limits.into_iter().filter_map(|limit| match limit.kind {
        LimitKind::Rates(rates) => rates.overrides,
        LimitKind::Slots(_) | LimitKind::Adaptive(_) => None,
    });
    overrides.collect()
}
