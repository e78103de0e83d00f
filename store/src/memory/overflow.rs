//! Counters of a check that share the overflow counter of their limit, because the store has no room for
//! their keys. The overflow counter is charged the sum of their costs, and its decision applies to each of
//! them.

use crate::check::{CheckResponse, Counter};
use crate::key_usage::{KeyUsage, KeyUsages};

/// A check whose counters with equal ids are merged.
pub(super) struct MergedCheck {
    pub(super) check: Vec<Counter>,
    pub(super) ids: Vec<u128>,
    /// Index in `check` of each counter of the original check.
    indexes: Vec<usize>,
}

impl MergedCheck {
    /// Merges a check. Returns `None` if no two counters have the same id.
    pub(super) fn new(check: &[Counter], ids: &[u128]) -> Option<Self> {
        let first = |id: &u128| ids.iter().position(|other| other == id);
        if ids.iter().enumerate().all(|(n, id)| first(id) == Some(n)) {
            return None;
        }
        let mut merged = Self { check: Vec::new(), ids: Vec::new(), indexes: Vec::new() };
        for (counter, id) in check.iter().zip(ids) {
            if let Some(index) = merged.ids.iter().position(|other| other == id) {
                merged.check[index].cost = merged.check[index].cost.saturating_add(counter.cost);
                merged.indexes.push(index);
            } else {
                merged.indexes.push(merged.ids.len());
                merged.check.push(counter.clone());
                merged.ids.push(*id);
            }
        }
        Some(merged)
    }

    /// Expands the response to the merged check into the response to the original one.
    pub(super) fn expand(&self, response: &CheckResponse) -> CheckResponse {
        let rates = |index: usize| self.check[index].limit.rates.len();
        let decisions = self.indexes.iter().flat_map(|&index| {
            let begin: usize = (0..index).map(rates).sum();
            response.decisions.iter().skip(begin).take(rates(index)).copied()
        });
        // The usages name the first counter of each that were merged.
        let first = |usage: &KeyUsage| {
            let counter = self.indexes.iter().position(|&index| index == usize::from(usage.counter))?;
            Some(KeyUsage { counter: counter as u8, ..*usage })
        };
        let key_usages = KeyUsages(response.key_usages.0.iter().filter_map(first).collect());
        CheckResponse { decisions: decisions.collect(), key_usages, ..*response }
    }
}
