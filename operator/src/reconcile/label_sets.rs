//! The labels of a pod as the selectors of Services and NetworkPolicies see them. Most pods of a namespace differ
//! only in labels that no selector reads, so whatever depends on selectors is computed once for all of them.

use std::collections::{BTreeMap, BTreeSet, HashSet};
use std::hash::Hash;

use foldhash::fast::RandomState;

/// Returns the values of the labels with these keys, in the order of the keys.
pub fn label_set<'a>(
    labels: &'a BTreeMap<String, String>,
    keys: &BTreeSet<&String>,
) -> Vec<Option<&'a String>> {
    keys.iter().map(|key| labels.get(*key)).collect()
}

/// Returns the first of all items with the same key.
pub fn unique_by<'a, T, K: Eq + Hash>(items: &'a [T], key: impl Fn(&'a T) -> K) -> Vec<&'a T> {
    let mut seen = HashSet::with_hasher(RandomState::default());
    items.iter().filter(|item| seen.insert(key(item))).collect()
}
