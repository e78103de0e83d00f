//! The name of an object.

use std::fmt;

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
