//! Selects pods of a namespace by their labels.

use std::collections::BTreeMap;

use kube::core::{Selector, SelectorExt as _};

/// Selects the pods whose labels match at least one of several selectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSelector {
    alternatives: Vec<Selector>,
}

impl PodSelector {
    /// Selects no pods.
    pub const NONE: Self = Self { alternatives: Vec::new() };

    /// Selects all pods.
    #[must_use]
    pub fn all() -> Self {
        Selector::default().into()
    }

    /// Reports whether a pod with these labels is selected.
    #[must_use]
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.alternatives.iter().any(|selector| selector.matches(labels))
    }

    /// Returns the selectors, of which a pod matches at least one.
    #[must_use]
    pub fn alternatives(&self) -> &[Selector] {
        &self.alternatives
    }
}

impl From<Selector> for PodSelector {
    fn from(selector: Selector) -> Self {
        Self { alternatives: vec![selector] }
    }
}

impl FromIterator<PodSelector> for PodSelector {
    /// Selects the pods that any of these selects.
    fn from_iter<I: IntoIterator<Item = PodSelector>>(selectors: I) -> Self {
        let alternatives = selectors.into_iter().flat_map(|selector| selector.alternatives).collect();
        Self { alternatives }
    }
}
