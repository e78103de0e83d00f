//! How objects and pods are named: objects by keys, the pods of policies by labels, and those of the service by their service account.

use std::collections::BTreeMap;
use std::fmt;

use kube::core::{Selector, SelectorExt as _};
use sluice_crds::SERVICE_LABEL;

/// The namespace and name of an object. An object that is deleted and created again keeps its key but has
/// another UID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ObjectKey {
    /// Namespace of the object.
    pub namespace: String,
    /// Name of the object.
    pub name: String,
}

/// The name of a policy.
pub type PolicyKey = ObjectKey;
/// The name of a store.
pub type StoreKey = ObjectKey;

impl ObjectKey {
    /// Returns the key of an object.
    pub fn new(namespace: impl Into<String>, name: impl Into<String>) -> Self {
        Self { namespace: namespace.into(), name: name.into() }
    }
}

impl fmt::Display for ObjectKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}

/// Selects the pods whose labels match at least one of several selectors.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PodSelector {
    /// The selectors, of which a pod matches at least one.
    pub alternatives: Vec<Selector>,
}

impl PodSelector {
    /// Selects no pods.
    pub const NONE: Self = Self { alternatives: Vec::new() };

    /// Selects all pods.
    pub fn all() -> Self {
        Selector::default().into()
    }

    /// Reports whether a pod with these labels is selected.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        self.alternatives.iter().any(|selector| selector.matches(labels))
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

/// The service account of the installation's service.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServiceAccount {
    /// Namespace of its pods, which is the operator's.
    pub namespace: String,
    /// Name of the ServiceAccount, and of the Service.
    pub name: String,
}

impl ServiceAccount {
    /// Reports whether a pod of a namespace with these labels is one of the service's.
    pub fn has_pod(&self, namespace: &str, labels: &BTreeMap<String, String>) -> bool {
        self.namespace == namespace
            && labels.get(SERVICE_LABEL.0).is_some_and(|value| value == SERVICE_LABEL.1)
    }
}
