//! The name of a policy object.

use std::fmt;

/// The namespace and name of a policy object. A policy that is deleted and created again keeps its key but
/// has another UID.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PolicyKey {
    /// Namespace of the policy.
    pub namespace: String,
    /// Name of the policy.
    pub name: String,
}

impl fmt::Display for PolicyKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.namespace, self.name)
    }
}
