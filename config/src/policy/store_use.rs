//! Use of the store: when limits call it, and how they decide without it.

use serde::{Deserialize, Serialize};

/// Location of the counters.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Consistency {
    /// In the store, with one check per request.
    #[default]
    Strict,
    /// In the store, with quota leases for the limits that allow them.
    Leased,
    /// In each pod, which admits its part of the limit without the store.
    Local,
}

impl Consistency {
    pub(crate) fn is_strict(&self) -> bool {
        *self == Self::Strict
    }
}

/// Decision about a request when the store does not respond in time.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum OnStoreFailure {
    /// The request passes.
    Allow,
    /// The request is rejected.
    Deny,
    /// The pod decides by its local quota, the limit divided by the number of replicas.
    Share,
}
